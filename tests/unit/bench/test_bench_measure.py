"""The measuring core: turns, what is counted, when it stops."""

import itertools

import pytest

from foretoken.bench import measure
from foretoken.bench.measure import Effort, Sample, Timing, compare, foreign_share, sample
from foretoken.bench.run.plan import Options


def timing(*pairs):
    return Timing([Sample(seconds, foreign) for seconds, foreign in pairs])


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


def test_clean_samples_make_the_median():
    assert timing((1.0, 0.0), (1.2, 0.05), (5.0, 0.5), (9.0, 0.5)).median == pytest.approx(1.1)


def test_one_clean_sample_is_not_enough_for_a_median():
    assert timing((1.0, 0.0), (5.0, 0.5), (9.0, 0.5)).median == 5.0


def test_without_proc_every_sample_counts():
    assert timing((1.0, None), (3.0, None)).clean == [1.0, 3.0]


def test_what_others_took_is_a_share_of_all_processors():
    assert foreign_share(busy=4.0, own=2.0, wall=2.0, cpus=2) == 0.5
    assert foreign_share(busy=1.0, own=1.1, wall=1.0, cpus=2) == 0.0  # the counters are coarse


def test_a_sample_knows_its_time_and_who_disturbed_it(clock):
    found = sample(lambda: clock.work(2.0, foreign=1.0))
    assert found == Sample(2.0, pytest.approx(0.25))
    assert not found.is_clean


def test_the_machine_without_counters(clock, monkeypatch):
    monkeypatch.setattr(measure, "busy_seconds", lambda: None)
    assert sample(lambda: clock.work(2.0)) == Sample(2.0, None)


def test_candidates_take_turns_in_alternating_order(clock):
    calls = []

    def candidate(name):
        def call():
            calls.append(name)
            clock.work(1.0)

        return call

    found = compare({name: candidate(name) for name in "ab"}, effort=Effort(rounds=3))
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert [len(timing.samples) for timing in found.values()] == [3, 3]


def test_the_device_is_waited_for_within_the_time(clock):
    found = compare({"a": lambda: None}, effort=Effort(rounds=2), synchronise=lambda: clock.work(0.5))
    assert found["a"].median == 0.5


def test_disturbed_rounds_are_repeated_but_not_for_ever(clock):
    disturbed = itertools.chain([1.0, 1.0], itertools.repeat(0.0))
    found = compare(
        {"a": lambda: clock.work(1.0, foreign=next(disturbed))}, effort=Effort(rounds=3, warm_up=0, seconds=100)
    )
    assert len(found["a"].samples) == 5
    always = compare({"a": lambda: clock.work(1.0, foreign=1.0)}, effort=Effort(rounds=3, warm_up=0, seconds=100))
    assert len(always["a"].samples) == 6


def test_time_ends_it_after_two_rounds(clock):
    found = compare({"a": lambda: clock.work(50.0)}, effort=Effort(rounds=9, seconds=60.0, warm_up=0))
    assert len(found["a"].samples) == 2


def test_one_round_can_be_asked_for(clock):
    assert len(compare({"a": lambda: clock.work(1.0)}, effort=Effort(rounds=1))["a"].samples) == 1


def test_rounds_that_were_asked_for_are_made_however_long_they_take(clock):
    effort = Effort(**Options(rounds=5).effort(rounds=2, seconds=60.0), warm_up=0)
    assert len(compare({"a": lambda: clock.work(50.0)}, effort=effort)["a"].samples) == 5


def test_own_work_is_not_foreign():
    """The real counters: a process that computes alone on its thread is not its own disturbance."""
    found = sample(lambda: sum(range(3_000_000)))
    assert found.seconds > 0
    assert found.foreign is None or 0 <= found.foreign <= 1.5
