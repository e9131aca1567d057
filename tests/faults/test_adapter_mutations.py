"""Whatever is changed in a saved folder, `foretoken predict` predicts sanely or says in one line why it does not."""

import itertools
import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from support.faults.finished import METHODS, TEXT, copied, header_of, sane, weights, with_header
from support.faults.forked import assert_done_or_refused
from support.faults.mutations import places, replaced

SCALARS = [None, True, 0, -1, 10**9, 10**40, 0.5, float("nan"), "", "x", "\ud800", r"(\w+)+!", [], {}, [1], {"a": 1}]
numbers = st.integers(0, 10**6)


def anywhere(values, new, number):
    """Return JSON with one value, at any depth, replaced or removed."""
    known = places(values)
    return replaced(values, known[number % len(known)], new)


@st.composite
def tensors(draw):
    """A change of a tensor, or of the header of the tensors' file."""
    what = draw(st.sampled_from(["drop", "rename", "shape", "type", "value", "header"]))
    number, value = draw(numbers), draw(st.sampled_from(SCALARS))

    def change(folder):
        if what == "header":
            with_header(weights(folder), anywhere(header_of(weights(folder))[1], value, number))
            return
        held = load_file(weights(folder))
        name = sorted(held)[number % len(held)]
        tensor = held.pop(name)
        shapes = (tensor[:0], tensor[:1], tensor.flatten(), tensor.swapaxes(0, -1).contiguous())
        held |= {
            "drop": {},
            "rename": {f"{name}x": tensor},
            "shape": {name: shapes[number % 4]},
            "type": {name: tensor.to((torch.float16, torch.int64, torch.bool, torch.complex64)[number % 4])},
            "value": {name: torch.full_like(tensor, (float("nan"), float("-inf"), 1e38, 1e-40)[number % 4])},
        }[what]
        save_file(held, weights(folder), {"format": "pt"})

    return change


@st.composite
def contents(draw):
    """A change of any file's bytes, or of whether it is there."""
    what = draw(st.sampled_from(["flip", "cut", "grow", "delete", "folder"]))
    number, byte = draw(numbers), draw(st.integers(0, 255))

    def change(folder):
        files = sorted(file for file in folder.iterdir() if file.is_file())
        file = files[number % len(files)]
        raw = file.read_bytes()
        place = number * 7919 % max(1, len(raw))
        file.unlink()
        if what == "folder":
            file.mkdir()
        elif what != "delete":
            rest = raw[place + 1 :] if what == "flip" else raw[place:] if what == "grow" else b""
            file.write_bytes(raw[:place] + bytes([byte]) + rest)

    return change


@st.composite
def fields(draw):
    """A change of a field of a JSON file, at any depth."""
    value, number, which = draw(st.sampled_from([*SCALARS, ...])), draw(numbers), draw(numbers)

    def change(folder):
        files = sorted(file for file in folder.iterdir() if file.suffix == ".json")
        file = files[which % len(files)]
        file.write_text(json.dumps(anywhere(json.loads(file.read_text()), value, number)))

    return change


changes = st.lists(st.one_of(tensors(), contents(), fields(), fields()), min_size=1, max_size=2)
IN_THE_WAY = (LookupError, ValueError, TypeError, OSError, StopIteration, ZeroDivisionError, SafetensorError)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a new folder at every call."""
    root = tmp_path_factory.mktemp("mutated")
    numbered = itertools.count()

    def make():
        (folder := root / str(next(numbered))).mkdir()
        return folder

    return make


@settings(max_examples=12, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from([*METHODS]), steps=changes, in_base=st.sampled_from([False, False, True]))
def test_mutated_folders(name, steps, in_base, runs, forked, place):
    root = place()
    folder = copied(runs[name], root)
    for step in steps:
        try:
            step(root / "base" if in_base and name != "full" else folder)
        except IN_THE_WAY:  # an earlier step was
            continue
    ended = forked("predict", folder, TEXT, seconds=60)
    shutil.rmtree(root)
    if assert_done_or_refused(ended, lines=2):
        sane(ended.out)
