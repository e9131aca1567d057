"""`foretoken fuse`: the same predictions from a folder without what training needed."""

import json


def test_a_fused_run_predicts_the_same(tiny, cli, tmp_path):
    options = {"max_steps": 6, "learning_rate": 0.05}
    for name, method in {
        "aot": {"name": "aot-p-tuning", "rank": 4},
        "projected": {"name": "prefix-tuning", "prefix_projection": True, "encoder_hidden_size": 4},
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        assert cli("train", tiny.recipe(folder / "recipe.yaml", method=method, training=options)).code == 0
        run = folder / "runs" / "run"
        text = "word1 prize word2"
        before = cli("predict", run, text)
        fused = cli("fuse", run, "-o", folder / "fused", "--dtype", "float32")
        assert (fused.code, fused.out.strip()) == (0, str(folder / "fused"))
        after = cli("predict", folder / "fused", text)
        assert (after.code, after.out) == (0, before.out)
        config = json.loads((folder / "fused" / "adapter_config.json").read_text())
        assert config["fused_table"] == "aot_table.safetensors" if name == "aot" else not config["prefix_projection"]
