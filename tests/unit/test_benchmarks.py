"""The benchmarks outside of the package: turns and medians, what is counted, each in its smallest form, targets."""

from importlib import import_module

import pytest
import torch
from benchmarks import __main__ as command
from benchmarks.suite import encoder, machine, measure, models, runner, tables
from benchmarks.suite.measure import compare
from torch.utils.flop_counter import FlopCounterMode

TINY = runner.Options(tiny=True, rounds=1)


@pytest.fixture
def clock(monkeypatch):
    """A clock that calls move on by themselves, and a machine that works for nobody else."""

    class Clock:
        now = busy = own = 0.0

        def work(self, seconds, foreign=0.0):
            self.now += seconds
            self.own += seconds
            self.busy += seconds + foreign

    clock = Clock()
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(measure.time, "process_time", lambda: clock.own)
    monkeypatch.setattr(measure, "busy_seconds", lambda: clock.busy)
    monkeypatch.setattr(measure.os, "cpu_count", lambda: 2)
    return clock


def test_candidates_take_turns_and_every_other_round_is_reversed(clock):
    called = []

    def call(name, spent):
        def run():
            called.append(name)
            clock.work(spent.pop(0))

        return run

    found = compare({"a": call("a", [50.0, 1.0, 2.0, 6.0]), "b": call("b", [50.0, 4.0, 4.0, 4.0])}, rounds=3)
    assert "".join(called) == "ab" + "ab" + "ba" + "ab"  # the first turn is the warm-up
    assert found["a"]["median"] == 2.0
    assert found["a"]["fastest"] == 1.0
    assert found["b"]["processor"] == 4.0


def test_what_a_graph_holds_and_what_a_call_takes():
    layer = torch.nn.Linear(4, 4)
    assert machine.saved_bytes(lambda: layer(torch.ones(2, 4)).tanh()) == 64  # its input, and what tanh returns
    size = 64 * 2**20
    found = machine.peak_of(lambda: torch.ones(size // 4), "cpu")
    if found["peak"] is not None:
        assert 0.9 * size < found["peak"] - found["before"] < 1.5 * size


def test_operations_of_a_layer_are_those_that_pytorch_counts():
    shape = models.SHAPES["base"]
    rows, keys = 1024, 1024
    x, heads = torch.empty(rows, shape.hidden, device="meta"), torch.empty(shape.heads, keys, 64, device="meta")
    layer = [torch.nn.Linear(shape.hidden, shape.hidden, device="meta") for _ in range(4)]
    wide = torch.nn.Linear(shape.hidden, shape.inner, device="meta")
    narrow = torch.nn.Linear(shape.inner, shape.hidden, device="meta")
    with FlopCounterMode(display=False) as counted:
        for linear in layer:
            linear(x)
        narrow(wide(x))
        heads @ heads.transpose(1, 2) @ heads
    whole = shape.__class__(shape.hidden, shape.heads, shape.inner, shape.vocabulary, window=rows - 2)  # all keys
    two, one = (encoder.needed({"n": rows, "batch": 1, "layers": n}, whole, encoder.FORWARD) for n in (2, 1))
    assert two - one == counted.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize("name", runner.NAMES)
def test_every_benchmark_runs_in_its_smallest_form(name):
    parts = import_module(f"benchmarks.suite.{name}").plan(TINY)
    assert len({part.title for part in parts}) == len(parts)
    for part in parts:
        found = runner.measured(name, part.settings)
        assert not found.get("failed")
        assert not found.get("skipped")
        assert list(tables.rows_of(found))


@pytest.mark.slow
def test_the_hand_written_prefix_of_transformers_is_ours():
    (part,) = [part for part in encoder.plan(TINY) if part.settings["what"] == "time"]
    found = runner.measured("encoder", part.settings)
    assert set(found["timings"]["step"]) == {"transformers", "foretoken", encoder.UNPACKED, encoder.CHECKPOINTED}
    assert max(one["gradients_relative"] for name, one in found["differences"].items() if "step" in name) < 1e-5
    assert max(one["outputs"] for one in found["differences"].values()) < 1e-5


def test_the_targets_are_in_the_committed_results(capsys):
    targets = tables.read(tables.TARGETS)["targets"]
    runs = [tables.read(file) for file in tables.RESULTS.glob("bench-*.json")]
    values = {target["name"]: tables.reached(target, runs) for target in targets}
    assert None not in values.values()
    assert len(values) == len(targets)
    assert command.main(["targets"]) == 0
    assert "| short texts in int8, beside fp32 | from 2.00 x | 2.07 x | reached |" in capsys.readouterr().out
