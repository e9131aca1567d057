"""What is known of the machine, and which precision is chosen on it; measurements are given, not timed."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from foretoken.machine import precision, processor
from foretoken.machine.precision import fastest_precision, product_seconds
from foretoken.machine.processor import BF16_UNITS, INT8_UNITS, cpu_model, fastest_unit, instructions

INTEL = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8488C
flags\t\t: fpu avx2 avx512_vnni avx512_bf16 amx_bf16 amx_int8

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n"


def config(**values):
    text = SimpleNamespace(hidden_size=384, **values)
    return SimpleNamespace(get_text_config=lambda: text)


@pytest.mark.parametrize(
    ("said", "name", "bf16", "int8"),
    [
        (INTEL, "Intel(R) Xeon(R) Platinum 8488C", "AMX", "AMX"),
        (INTEL.replace("amx", "x"), "Intel(R) Xeon(R) Platinum 8488C", "AVX-512", "AVX-512 VNNI"),
        (ARM, None, "NEON", "NEON"),
        ("model name: Old\nflags: fpu avx2\n", "Old", None, None),
    ],
)
def test_the_units_of_a_processor(monkeypatch, tmp_path, said, name, bf16, int8):
    (tmp_path / "cpuinfo").write_text(said)
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert name is None or cpu_model() == name
    has = instructions()
    assert has is not None
    assert (fastest_unit(BF16_UNITS, has), fastest_unit(INT8_UNITS, has)) == (bf16, int8)


def test_where_there_is_no_cpuinfo_nothing_is_claimed(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "none")
    assert instructions() is None
    assert cpu_model()


@pytest.mark.parametrize(
    ("fp32", "bf16", "expected"), [(1.0, 0.2, "bf16"), (1.0, 0.79, "bf16"), (1.0, 0.9, "fp32"), (1.0, 7.0, "fp32")]
)
def test_bf16_is_chosen_where_it_wins_clearly(fp32, bf16, expected, monkeypatch):
    asked = []

    def measure(shape, device):
        asked.append((shape, device))
        return {"fp32": fp32, "bf16": bf16}

    monkeypatch.setattr(precision, "product_seconds", measure)
    found = fastest_precision(config(intermediate_size=1500), "cpu")
    assert found.precision == expected
    assert fastest_precision(config(), "cpu").shape == (128, 384, 1536)  # four times the width, where none is named
    assert asked == [((128, 384, 1500), "cpu"), ((128, 384, 1536), "cpu")]
    assert asdict(found) == {"precision": expected, "shape": (128, 384, 1500), "seconds": {"fp32": fp32, "bf16": bf16}}


def test_a_measurement_leaves_the_random_numbers_as_they_were():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    seconds = product_seconds((4, 8, 16), "cpu", limit=0.01)
    assert torch.equal(torch.rand(2), expected)
    assert set(seconds) == {"fp32", "bf16"}
    assert min(seconds.values()) > 0
