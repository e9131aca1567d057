"""Pruning: a run that does worse than others did at the same evaluation is ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from foretoken.options import Values
from foretoken.sweeps.candidates import quiet_optuna
from foretoken.sweeps.config import PruneOptions
from foretoken.sweeps.run_table import FAILED, PRUNED, SCORED, RunRow
from foretoken.training.run.record import Pruned

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.trial import FrozenTrial, TrialState


class PruneCallback(TrainerCallback):
    """Writes the metric of every evaluation to the run table, and ends the run if optuna's pruner says so."""

    def __init__(
        self,
        options: PruneOptions,
        *,
        metric: str,
        maximise: bool,
        others: Callable[[], Sequence[RunRow]],
        note: Callable[[Values], object],
    ) -> None:
        self.options, self.metric, self.maximise = options, metric, maximise
        self.others, self.note = others, note

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Compare the run with the others."""
        values = evaluations(state.log_history, self.metric)
        if not values:
            return
        hopeless, rungs = judge(values, self.others(), self.options, maximise=self.maximise)
        self.note({"values": {str(step): value for step, value in values.items()}, "rungs": rungs})
        if hopeless:
            number = len(values)
            raise Pruned(f"{self.metric} {values[number]:.4f} at evaluation {number}: others were better there")


def evaluations(log: Sequence[Values], metric: str) -> dict[int, float]:
    """Return the metric of every evaluation by its number; a resumed run's earlier ones count too.

    >>> evaluations([{"loss": 1.0}, {"eval_f1": 0.5}, {"eval_f1": 0.6}], "f1")
    {1: 0.5, 2: 0.6}
    """
    found = [entry[f"eval_{metric}"] for entry in log if f"eval_{metric}" in entry]
    return dict(enumerate(found, start=1))


def judge(
    values: Mapping[int, float], others: Sequence[RunRow], options: PruneOptions, *, maximise: bool
) -> tuple[bool, dict[str, object]]:
    """Tell whether to prune a run with these values, and return the state of successive halving."""
    import optuna

    with quiet_optuna():
        study = optuna.create_study(direction="maximize" if maximise else "minimize")
        for row in others:
            study.add_trial(_past(row))
        study.add_trial(_trial(optuna.trial.TrialState.RUNNING, values, {}))
        hopeless = _pruner(options).prune(study, study.trials[-1])
        return bool(hopeless), _rungs(study.trials[-1])


def _pruner(options: PruneOptions) -> BasePruner:
    from optuna.pruners import MedianPruner, SuccessiveHalvingPruner

    if options.pruner == "median":
        return MedianPruner(n_startup_trials=options.startup_runs, n_warmup_steps=options.after)
    return SuccessiveHalvingPruner(min_resource=options.after, reduction_factor=options.reduction_factor)


def _past(row: RunRow) -> FrozenTrial:
    """Return another run as a trial of optuna; one that is not over does not count in a median."""
    from optuna.trial import TrialState

    history = row.history or {}
    states = dict.fromkeys(SCORED, TrialState.COMPLETE) | {PRUNED: TrialState.PRUNED, FAILED: TrialState.FAIL}
    values = {int(step): value for step, value in history.get("values", {}).items()}
    return _trial(states.get(row.state, TrialState.RUNNING), values, history.get("rungs", {}))


def _trial(state: TrialState, values: Mapping[int, float], rungs: Values) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    last = values[max(values)] if values else 0.0
    value = last if state is TrialState.COMPLETE else None
    return create_trial(state=state, value=value, intermediate_values=dict(values), system_attrs=dict(rungs))


def _rungs(trial: FrozenTrial) -> dict[str, object]:
    return {key: value for key, value in trial.system_attrs.items() if key.startswith("completed_rung_")}
