"""Frozen weights in 8 bits: each map is what its formula says, and adapters of every family compute beside it."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from foretoken.errors import ConfigError
from foretoken.inference import int8
from foretoken.inference.int8 import Int8Linear, hold_in_int8
from foretoken.inference.predictor import load_for_inference
from foretoken.machine.processor import instructions

from support import tiny
from support.saved import save_adapter
from support.table import CELLS, adapted

has_units = pytest.mark.skipif(
    not set(int8.X86_UNITS) & (instructions() or frozenset()), reason="this processor has no units for int8"
)


@pytest.fixture
def narrow(monkeypatch):
    """Tiny models have narrow maps."""
    monkeypatch.setattr(int8, "LEAST_WIDTH", 1)


def rounded(rows):
    """Whole numbers of 8 bits and the scale of each row, by loops in float64."""
    codes, scales = np.zeros(rows.shape, dtype=int), np.zeros(len(rows))
    for i, row in enumerate(rows):
        # the scale is float32's, so that a number halfway between two codes falls to the same side
        scales[i] = max(np.float32(max(abs(value) for value in row)) / np.float32(127), np.finfo(np.float32).tiny)
        for k, value in enumerate(row):
            codes[i, k] = round(float(np.float32(value) / np.float32(scales[i])))
    return codes, scales


def naive(linear, x):
    rows, s = rounded(x.reshape(-1, x.shape[-1]).numpy())
    columns, t = rounded(linear.weight.detach().numpy())
    out = np.zeros((len(rows), len(columns)))
    for i in range(len(rows)):
        for j in range(len(columns)):
            out[i, j] = s[i] * t[j] * sum(int(a) * int(b) for a, b in zip(rows[i], columns[j], strict=True))
            out[i, j] += 0.0 if linear.bias is None else float(linear.bias.detach()[j])
    return torch.tensor(out).view(*x.shape[:-1], len(columns))


@has_units
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 24), (1, 24), (0, 24)])
def test_a_map_is_its_formula(shape, bias):
    linear, x = nn.Linear(24, 7, bias=bias), 3 * torch.randn(shape)
    found = Int8Linear(linear.weight, linear.bias)(x)
    assert found.shape == (*shape[:-1], 7)
    torch.testing.assert_close(found.double(), naive(linear, x), atol=1e-5, rtol=1e-5)


@has_units
def test_a_row_is_the_same_alone_and_among_others():
    linear, x = nn.Linear(96, 64), torch.randn(700, 96) * torch.logspace(-3, 3, 700)[:, None]
    held = Int8Linear(linear.weight, linear.bias)
    together = held(x)
    for row in (0, 255, 256, 511, 699):
        assert torch.equal(held(x[row]), together[row])


@has_units
def test_the_worst_numbers():
    linear = nn.Linear(64, 2)
    held = Int8Linear(linear.weight, linear.bias)
    assert torch.equal(held(torch.zeros(1, 64))[0], linear.bias)
    assert held(torch.full((1, 64), 1e30)).isfinite().all()
    assert not held(torch.full((1, 64), float("nan"))).isfinite().any()
    assert not held(torch.tensor([[float("inf")] + [0.0] * 63])).isfinite().any()


@has_units
@pytest.mark.parametrize("family", [family for family in tiny.FAMILIES if ("prefix-tuning", family) in CELLS])
def test_every_family_computes_beside_it(family, narrow):
    model = tiny.shaken(adapted(tiny.model(family), "prefix-tuning", task_type=tiny.main_task(family))).eval()
    inputs = tiny.batch(family, labels=False)
    kept = {
        name: p.clone() for name, p in model.named_parameters() if ".foretoken." in name or "modules_to_save" in name
    }
    with torch.no_grad():
        expected = tiny.first(model(**inputs))
        assert hold_in_int8(model) > 10_000
        found = tiny.first(model(**inputs))
    assert 0 < (found - expected).abs().max() < 0.1 * expected.abs().max() + 0.05
    now = dict(model.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in kept.items())


@has_units
def test_lora_stays_in_floats(narrow):
    model = get_peft_model(tiny.model("bert"), LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"]))
    hold_in_int8(model)
    names = {name for name, module in model.named_modules() if isinstance(module, Int8Linear)}
    assert any(name.endswith("query.base_layer") for name in names)
    assert not any("lora_" in name or "classifier" in name or "pooler" in name for name in names)


@has_units
def test_maps_whose_weights_dora_reads_stay_in_floats(narrow):
    config = LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], use_dora=True)
    model, inputs = get_peft_model(tiny.model("bert"), config).eval(), tiny.batch("bert", labels=False)
    with torch.no_grad():
        expected = tiny.first(model(**inputs))
        hold_in_int8(model)
        found = tiny.first(model(**inputs))
    assert 0 < (found - expected).abs().max() < 0.1 * expected.abs().max()
    names = {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, Int8Linear)}
    assert names >= {"key", "dense"}
    assert "base_layer" not in names


@has_units
def test_a_folder_is_loaded_in_it(narrow, tmp_path):
    predictor = load_for_inference(save_adapter(tmp_path / "adapter"), precision="int8")
    assert any(isinstance(module, Int8Linear) for module in predictor.model.modules())
    assert not any("classifier" in name for name, item in predictor.model.named_modules() if type(item) is Int8Linear)


def test_a_processor_without_units_is_said(monkeypatch):
    monkeypatch.setattr(int8, "instructions", lambda: frozenset({"avx2"}))
    with pytest.raises(ConfigError, match="this processor has none of AMX, AVX-512 VNNI, AVX VNNI; use auto"):
        hold_in_int8(nn.Linear(2, 2))
