"""A run that ended before it was saved; what is killed elsewhere is in tests/faults."""

import json
import shutil


def test_a_run_killed_after_its_last_step_is_only_measured(tiny, tmp_path, cli, monkeypatch):
    """Early stopping ended the training; the kill came while the adapter was being saved."""
    options = {"epochs": 9, "early_stopping_patience": 1, "learning_rate": 1e-9}
    recipe, run = tiny.recipe(tmp_path / "r.yaml", training=options), tmp_path / "runs" / "run"
    with monkeypatch.context() as patched:
        patched.setattr("foretoken.training.run.train.save_model", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert cli("train", recipe).code == 130
    shutil.rmtree(run / "adapter", ignore_errors=True)
    result = cli("train", recipe)
    assert result.code == 0
    assert "training had ended" in result.err
    values = json.loads((run / "run.json").read_text())
    assert values["steps"] == 24
    assert [entry["step"] for entry in values["epochs"]] == [12, 24]
    assert (run / "adapter" / "adapter_model.safetensors").exists()
