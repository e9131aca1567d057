"""Pruning: optuna's pruners over runs that live in a database."""

import pytest
from transformers import TrainerState

from foretoken.sweeps.config import PruneOptions
from foretoken.sweeps.pruning import PruneCallback, judge
from foretoken.sweeps.run_table import PRUNED, RUNNING, TRAINED, RunRow
from foretoken.training.run.record import Pruned


def past(state, *values, rungs=()):
    history = {"values": {str(step): value for step, value in enumerate(values, start=1)}, "rungs": dict(rungs)}
    return RunRow(f"r{values}", {}, state=state, history=history)


def hopeless(values, others, maximise=True, **options):
    numbered = dict(enumerate(values, start=1))
    return judge(numbered, others, PruneOptions(**options), maximise=maximise)[0]


OTHERS = [past(TRAINED, 0.5, 0.6, 0.7), past(TRAINED, 0.4, 0.5, 0.6), past(TRAINED, 0.6, 0.8, 0.9)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [((0.5, 0.59), True), ((0.5, 0.61), False), ((0.65, 0.1), False), ((0.1,), False)],
)
def test_the_median_of_what_the_others_had_at_the_same_evaluation(values, expected):
    assert hopeless(values, OTHERS, startup_runs=3, after=2) is expected


def test_low_is_good_where_the_metric_is_a_loss():
    assert hopeless((0.7, 0.7), OTHERS, maximise=False, startup_runs=3)
    assert not hopeless((0.5, 0.5), OTHERS, maximise=False, startup_runs=3)


def test_nobody_is_pruned_before_enough_have_ended():
    running = [past(RUNNING, 0.9, 0.9), past(PRUNED, 0.9, 0.9)]
    assert not hopeless((0.1, 0.1), OTHERS + running, startup_runs=4)


def test_successive_halving_remembers_through_the_board():
    options, rows = PruneOptions(pruner="successive-halving", after=1, reduction_factor=2), []
    kept = []
    for value in (0.9, 0.8, 0.1, 0.95):
        ended, rungs = judge({1: value}, rows, options, maximise=True)
        rows.append(past(PRUNED if ended else RUNNING, value, rungs=rungs.items()))
        kept.append(not ended)
    assert kept == [True, False, False, True]
    assert all(row.history["rungs"] for row in rows)


def test_the_callback_notes_every_evaluation_and_ends_the_run():
    noted = []
    callback = PruneCallback(
        PruneOptions(startup_runs=3, after=1),
        metric="f1",
        maximise=True,
        others=lambda: OTHERS,
        note=noted.append,
    )
    state = TrainerState()
    callback.on_evaluate(None, state, None)
    assert noted == []
    state.log_history = [{"eval_f1": 0.6}]
    callback.on_evaluate(None, state, None)
    state.log_history.append({"eval_f1": 0.1})
    state.log_history.append({"eval_f1": 0.1})
    with pytest.raises(Pruned, match=r"f1 0\.1000 at evaluation 3: others were better there"):
        callback.on_evaluate(None, state, None)
    assert noted[-1]["values"] == {"1": 0.6, "2": 0.1, "3": 0.1}
