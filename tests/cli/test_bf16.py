"""A recipe, `predict` and `evaluate` in bfloat16."""

import pytest
from safetensors import safe_open


def dtypes(folder):
    with safe_open(
        folder / "model.safetensors" if folder.name == "model" else folder / "adapter_model.safetensors", "pt"
    ) as file:
        return {str(file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118 - no mapping


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("lora", "frozen parameters are held in it; what is trained stays float32"),
        ("full", "computing in bfloat16; what is trained stays float32"),
    ],
)
def test_what_a_run_in_bf16_saves_is_float32(method, said, tiny, tmp_path, cli, record):
    options = {"epochs": 2, "precision": "bf16"}
    result = cli("train", tiny.recipe(tmp_path / "r.yaml", method=method, training=options))
    assert result.code == 0
    assert said in result.err
    run = tmp_path / "runs" / "run"
    assert dtypes(run / ("model" if method == "full" else "adapter")) == {"torch.float32"}
    evaluated = cli("evaluate", run, tiny.data, "--precision", "bf16")
    assert evaluated.code == 0
    assert "computing in bfloat16" in evaluated.err
