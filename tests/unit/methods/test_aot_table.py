"""The fused table of ahead-of-time P-tuning: the file, what is read of it, and how it fails."""

import json
import os
import re
import struct
import sys
from pathlib import Path

import peft.config
import peft.mapping
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from foretoken.errors import AdapterError
from foretoken.methods.aot import table as aot_table
from foretoken.methods.aot.config import AoTPTuningConfig, write_fused_table
from foretoken.methods.aot.table import FILE_NAME, TENSOR, FusedTable
from foretoken.methods.dimensions import Dimensions

V, D, L = 23, 8, 3
IDS = torch.tensor([[4, 1, 4, 22, 0], [1, 1, 7, 0, 0]])
TYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=["fc", "kronecker"])
def config(request):
    return AoTPTuningConfig(variant=request.param, rank=3, dropout=0.2)


@pytest.fixture
def place():
    return Dimensions("tiny", D, L, 2, 2, 4, V, embedding=nn.Embedding(V, D))


def built(config, place):
    entries = config.build(place).layers
    for entry in entries.values():
        for parameter in entry.eval().parameters():
            nn.init.normal_(parameter, std=0.5)
    return entries


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def whole(entries):
    return torch.stack([entry.shift(torch.arange(V)) for entry in entries.values()]).detach()


@pytest.fixture
def folder(config, place, tmp_path):
    """A folder with a fused adapter of float32."""
    write_fused_table(config, place, built(config, place), tmp_path, dtype=torch.float32).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows_per_chunk", [1, 7, 23, 4096])
def test_fused_equals_unfused_to_rounding(config, place, tmp_path, dtype, rows_per_chunk):
    entries = built(config, place)
    served = write_fused_table(config, place, entries, tmp_path, dtype=dtype, rows_per_chunk=rows_per_chunk)
    fused = served.build(place).layers
    assert list(fused) == list(entries)
    x = torch.randn(2, 5, D)
    for layer, table in enumerate(whole(entries)):
        expected = x + table.to(dtype).float()[IDS]
        torch.testing.assert_close(fused[layer].on_text(x, IDS), expected, atol=1e-6, rtol=0)
        rounding = table.abs().max() * torch.finfo(dtype).eps + 1e-6
        torch.testing.assert_close(fused[layer].on_text(x, IDS), entries[layer].on_text(x, IDS), atol=rounding, rtol=0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_table_is_mapped_and_not_read(tmp_path):
    """Opening a table of 64 MiB takes no memory for it, and reading rows takes memory for their pages only."""
    save_file({TENSOR: torch.ones(2, 2**14, 1024, dtype=torch.float16)}, tmp_path / FILE_NAME)
    table = FusedTable(tmp_path / FILE_NAME, (2, 2**14, 1024))
    start, kilobytes = mapping_of(FILE_NAME)
    assert start <= table.values.data_ptr() < start + 2**26 + 2**12
    assert kilobytes() < 2**13  # of 2**16: what the kernel maps around the pages that are touched
    table.rows(1, torch.tensor([3, 9000]))
    assert 0 < kilobytes() < 2**14


def mapping_of(name):
    """Return where a file is mapped, and how much of the mapping is in memory."""

    def lines():
        text = Path("/proc/self/smaps").read_text().splitlines()
        first = next(i for i, line in enumerate(text) if line.endswith(name))
        return text[first : first + 6]

    def kilobytes():
        return next(int(line.split()[1]) for line in lines() if line.startswith("Rss:"))

    return int(lines()[0].split("-")[0], 16), kilobytes


def test_tokens_beyond_the_table_are_refused(folder, place):
    entry = AoTPTuningConfig.from_pretrained(str(folder)).build(place).layers[0]
    with pytest.raises(AdapterError, match="token 23 is beyond the 23 tokens"):
        entry.on_text(torch.zeros(1, 1, D), torch.tensor([[V]]))


def test_saving_takes_the_table_along(folder, place, tmp_path):
    served = AoTPTuningConfig.from_pretrained(str(folder))
    other = tmp_path / "other"
    served.save_pretrained(str(other))
    before = (folder / FILE_NAME).stat()
    served.save_pretrained(str(folder))  # where it is already: not copied onto itself
    assert (folder / FILE_NAME).stat().st_ino == before.st_ino
    assert served.fused_table == str(folder / FILE_NAME)
    assert json.loads((other / "adapter_config.json").read_text())["fused_table"] == FILE_NAME
    assert names(other) == ["adapter_config.json", FILE_NAME]
    moved = other.rename(tmp_path / "moved")
    again = AoTPTuningConfig.from_pretrained(str(tmp_path), subfolder="moved")
    assert again.fused_table == str(moved / FILE_NAME)
    x = torch.randn(2, 5, D)
    assert torch.equal(again.build(place).layers[0].on_text(x, IDS), served.build(place).layers[0].on_text(x, IDS))


def test_the_table_of_a_hub_repository_is_fetched(folder, monkeypatch):
    asked = []

    def download(repo_id, filename, **options):
        asked.append((repo_id, filename, options.get("revision")))
        return str(folder / filename)

    def fetch(repo_id, filename, *, subfolder=None, revision=None, token=None):
        return download(repo_id, filename, revision=revision)

    monkeypatch.setattr(peft.config, "hf_hub_download", download)
    monkeypatch.setattr(aot_table, "hf_hub_download", fetch)
    served = AoTPTuningConfig.from_pretrained("someone/adapter", revision="v1", is_trainable=False)
    assert served.fused_table == str(folder / FILE_NAME)
    assert asked[-1] == ("someone/adapter", FILE_NAME, "v1")


@pytest.mark.parametrize("name", ["../table.safetensors", "/etc/table.safetensors", "a/b"])
def test_a_table_outside_the_folder_is_refused(folder, name):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fused_table": name}))
    with pytest.raises(AdapterError, match="expected the name of a file in the adapter's own folder"):
        AoTPTuningConfig.from_pretrained(str(folder))


def cut_to(size):
    return lambda file: os.truncate(file, size % file.stat().st_size)


def begun_with(start):
    return lambda file: file.write_bytes(start + file.read_bytes()[len(start) :])


def holding(**tensors):
    return lambda file: save_file(tensors, file)


def a_folder(file):
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "is missing; it belongs beside adapter_config"),
        (a_folder, "cannot be read"),
        *((cut_to(size), r"cannot be read \(.*\); copy it or fuse it again") for size in (0, 4, 40, 200, -1)),
        (begun_with(b"\xff" * 8), "cannot be read"),
        (begun_with(struct.pack("<Q", 2**40)), "cannot be read"),
        (begun_with(struct.pack("<Q", 10) + b"{not json}"), "cannot be read"),
        *(
            (holding(table=torch.zeros(shape)), rf"{re.escape(str(shape))} .* expected .* = \(3, 23, 8\)")
            for shape in [(L + 1, V, D), (L, V + 1, D), (L, V, D - 1)]
        ),
        (holding(table=torch.zeros(L, V, D, dtype=torch.int16)), "of int16, expected"),
        (holding(weight=torch.zeros(L, V, D)), "has no tensor 'table'; it is not a fused table"),
    ],
)
def test_a_table_that_is_not_the_adapters_is_refused_in_one_line(folder, place, damage, message):
    damage(folder / FILE_NAME)
    with pytest.raises(AdapterError, match=message) as error:
        AoTPTuningConfig.from_pretrained(str(folder)).build(place)
    assert str(folder / FILE_NAME) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [(1e5, "layer 2 has values that torch.float16 cannot hold; fuse as"), (float("nan"), "not finite; train it again")],
)
def test_values_that_the_type_cannot_hold_are_not_written(config, place, folder, value, message):
    """The table that was there before stays as it is."""
    entries, before = built(config, place), (folder / FILE_NAME).read_bytes()
    shift = entries[2].shift
    nn.init.constant_(shift.second.bias if config.variant == "fc" else shift.c, value)
    with pytest.raises(AdapterError, match=message):
        write_fused_table(config, place, entries, folder, dtype=torch.float16)
    assert (folder / FILE_NAME).read_bytes() == before
    assert names(folder) == ["adapter_config.json", FILE_NAME]
