"""Whatever is changed in a saved folder, `foretoken predict` predicts sanely or says in one line why it does not."""

import itertools
import json
import pickle
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from support.faults.finished import METHODS, TEXT, copied, header_of, sane, weights, with_header
from support.faults.forked import assert_done_or_refused

SCALARS = [None, True, False, 0, 1, -1, 2, 3, 7, 10**6, 10**9, 10**19, 10**40, 0.5, -1e300, float("nan"), float("inf")]
SCALARS += ["", "x", "0", "\ud800", "a" * 5000, "../..", "/", ".*", r"(\w+)+!"]
SCALARS += [[], {}, [[]], [1], ["x"], {"a": 1}, {"0": "x"}, [None], [10**9]]
TYPES = [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64]
VALUES = [float("nan"), float("inf"), float("-inf"), 1e38, -1e38, 0.0, 1e-40]
numbers = st.integers(0, 10**6)


def nested(value, key, number):
    """Return JSON with one value, at any depth, replaced; where there is no key, added."""
    places = list(paths(value))
    path = places[number % len(places)]
    copy = json.loads(json.dumps(value))
    *parents, last = path
    holder = copy
    for step in parents:
        holder = holder[step]
    if key is ...:
        del holder[last]
    else:
        holder[last] = key
    return copy


def paths(value, before=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in items:
        yield (*before, step)
        yield from paths(inner, (*before, step))


@st.composite
def tensors(draw):
    """A change of the tensors."""
    what = draw(st.sampled_from(["drop", "rename", "add", "shape", "type", "value", "swap", "scale"]))
    number, value, kind = draw(numbers), draw(st.sampled_from(VALUES)), draw(st.sampled_from(TYPES))

    def change(folder):
        held = load_file(weights(folder))
        names = sorted(held)
        name, other = names[number % len(names)], names[(number // 7) % len(names)]
        tensor = held.pop(name)
        match what:
            case "rename":
                held[name + "x" if number % 2 else other + ".y"] = tensor
            case "add":
                held |= {name: tensor, "more": torch.ones(3)}
            case "shape":
                held[name] = [
                    tensor[:0],
                    tensor[:1],
                    tensor.flatten(),
                    tensor[None],
                    tensor.swapaxes(0, -1).contiguous(),
                ][number % 5]
            case "type":
                held[name] = tensor.to(kind)
            case "value":
                tensor.view(-1)[number % tensor.numel()] = value
                held[name] = tensor
            case "scale":
                held[name] = tensor * 1e30
            case "swap" if other != name:
                held |= {name: held[other].clone(), other: tensor}
        save_file(held, weights(folder), {"format": "pt"})

    return change


@st.composite
def headers(draw):
    """A change of the header of the tensors' file."""
    value, number = draw(st.sampled_from(SCALARS)), draw(numbers)

    def change(folder):
        with_header(weights(folder), nested(header_of(weights(folder))[1], value, number))

    return change


@st.composite
def contents(draw):
    """A change of any file's bytes, or of whether it is there."""
    what = draw(st.sampled_from(["flip", "cut", "grow", "empty", "delete", "folder", "zeros", "copy"]))
    number, byte = draw(numbers), draw(st.integers(0, 255))

    def change(folder):
        files = sorted(file for file in folder.iterdir() if file.is_file())
        file, other = files[number % len(files)], files[(number // 7) % len(files)]
        raw = bytearray(file.read_bytes())
        place = number * 7919 % max(1, len(raw))
        match what:
            case "flip":
                raw[place : place + 1] = bytes([byte])
            case "cut":
                del raw[place:]
            case "grow":
                raw += bytes([byte]) * (number % 100)
            case "zeros":
                raw[place:] = bytes(len(raw) - place)
            case "empty":
                raw.clear()
            case "copy":
                raw = bytearray(other.read_bytes())
        file.unlink()
        if what == "folder":
            file.mkdir()
        elif what != "delete":
            file.write_bytes(raw)

    return change


@st.composite
def fields(draw):
    """A change of a field of a JSON file, at any depth."""
    value, number, which = draw(st.sampled_from([*SCALARS, ...])), draw(numbers), draw(numbers)

    def change(folder):
        files = sorted(file for file in folder.iterdir() if file.suffix == ".json")
        file = files[which % len(files)]
        file.write_text(json.dumps(nested(json.loads(file.read_text()), value, number)))

    return change


@st.composite
def additions(draw):
    """A file that does not belong there."""
    name = draw(st.sampled_from(["adapter_model.bin", "pytorch_model.bin", "model.safetensors.index.json", "x.py"]))
    content = draw(st.sampled_from([b"", pickle.dumps([1]), b'{"weight_map": {"a": "../x"}}', b"\xff" * 50]))
    return lambda folder: (folder / name).write_bytes(content)


changes = st.one_of(tensors(), headers(), contents(), fields(), fields(), fields(), additions())
mutations = st.tuples(
    st.sampled_from([*METHODS]), st.lists(changes, min_size=1, max_size=2), st.sampled_from([0, 0, 1])
)
IN_THE_WAY = (KeyError, IndexError, ValueError, TypeError, OSError, StopIteration, ZeroDivisionError, SafetensorError)
quietly = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module")
def predicted(runs, forked, tmp_path_factory):
    """Mutate a copy of what a run saved, or of its base model, predict with it, and judge the outcome."""
    root = tmp_path_factory.mktemp("mutated")
    fresh = (root / str(number) for number in itertools.count())

    def check(mutation):
        name, steps, base = mutation
        place = next(fresh)
        place.mkdir()
        folder = copied(runs[name], place)
        target = place / "base" if base and name != "full" else folder
        for step in steps:
            try:
                step(target)
            except (
                KeyError,
                IndexError,
                ValueError,
                TypeError,
                OSError,
                StopIteration,
            ):  # an earlier step was in the way
                continue
            except Exception as error:
                if "safetensor" not in type(error).__name__.lower():
                    raise
        ended = forked("predict", folder, TEXT, seconds=60)
        shutil.rmtree(place)
        if assert_done_or_refused(ended, lines=2):
            sane(ended.out)

    return check


@settings(max_examples=15, derandomize=True, **quietly)
@given(mutation=mutations)
def test_mutated_folders(predicted, mutation):
    predicted(mutation)


@pytest.mark.slow
@settings(max_examples=700, derandomize=False, **quietly)
@given(mutation=mutations)
def test_many_mutated_folders(predicted, mutation):
    predicted(mutation)
