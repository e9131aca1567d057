"""Candidates: which values of the searched fields are tried, proposed by a grid or by optuna."""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foretoken.errors import ConfigError
from foretoken.sweeps.config import MOST_TRIALS
from foretoken.sweeps.naming import candidate_name
from foretoken.sweeps.plan import Contestant, Plan
from foretoken.sweeps.space import size_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, TrialState

    from foretoken.sweeps.config import SearchOptions

Params = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What is known of a candidate: its score, None while it runs; if lost, what was `seen` before it was pruned."""

    params: Mapping[str, Any]
    score: float | None = None
    lost: bool = False
    seen: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pool:
    """The candidates of a contestant so far, and how many there will be."""

    candidates: Sequence[Params]
    size: int


def planned(contestant: Contestant, search: SearchOptions) -> list[Params] | None:
    """Return the candidates that do not depend on results, the same on every machine; None for tpe."""
    if not contestant.space:
        return [{}]
    if search.strategy == "tpe":
        return None
    return _grid(contestant) if search.strategy == "grid" else _random(contestant, search)


def propose(contestant: Contestant, search: SearchOptions, known: Sequence[Outcome], *, maximise: bool) -> Params:
    """Return the candidate that optuna's TPE proposes after those that are known."""
    from optuna.samplers import TPESampler

    with quiet_optuna():
        study = _study(TPESampler(seed=_seed(contestant, search, len(known))), maximise=maximise)
        for outcome in known:
            trial = _as_trial(contestant, outcome)
            if trial is not None:
                study.add_trial(trial)
        return _ask(study, contestant)


def pools(
    plan: Plan, fixed: Mapping[str, list[Params] | None], proposed: Mapping[str, list[Params]]
) -> dict[str, Pool]:
    """Return the candidates of every contestant: those fixed from the start, or those proposed so far."""
    trials = plan.file.search.trials or 0
    return {
        name: Pool(proposed.get(name, []), trials) if found is None else Pool(found, len(found))
        for name, found in fixed.items()
    }


def number_of_candidates(contestant: Contestant, search: SearchOptions) -> int:
    """Return how many candidates a contestant has when its search is over."""
    found = planned(contestant, search)
    return (search.trials or 0) if found is None else len(found)


def _grid(contestant: Contestant) -> list[Params]:
    values = [item.grid or () for item in contestant.space.values()]
    return [dict(zip(contestant.space, point, strict=True)) for point in itertools.product(*values)]


def _random(contestant: Contestant, search: SearchOptions) -> list[Params]:
    """Draw distinct candidates; a small space may have fewer than were asked for."""
    from optuna.samplers import RandomSampler

    wanted, found = min(search.trials or 0, size_of(contestant.space) or MOST_TRIALS), dict[str, Params]()
    with quiet_optuna():
        study = _study(RandomSampler(seed=_seed(contestant, search, 0)), maximise=True)
        for _ in range(20 * wanted):
            params = _ask(study, contestant)
            found.setdefault(candidate_name(params), params)
            if len(found) == wanted:
                break
    return list(found.values())


def _study(sampler: BaseSampler, *, maximise: bool) -> Study:
    import optuna

    return optuna.create_study(sampler=sampler, direction="maximize" if maximise else "minimize")


def _ask(study: Study, contestant: Contestant) -> Params:
    trial = study.ask({name: values.distribution for name, values in contestant.space.items()})
    return {name: values.decode(trial.params[name]) for name, values in contestant.space.items()}


def _as_trial(contestant: Contestant, outcome: Outcome) -> FrozenTrial | None:
    """Return optuna's view of a candidate; None where the space of the file no longer holds it."""
    from optuna.trial import TrialState, create_trial

    coded = {name: values.encode(outcome.params.get(name)) for name, values in contestant.space.items()}
    if any(value is None for value in coded.values()):
        return None
    state = _state(outcome)
    distributions = {name: values.distribution for name, values in contestant.space.items()}
    return create_trial(
        state=state,
        value=outcome.score if state is TrialState.COMPLETE else None,
        params=coded,
        distributions=distributions,
        intermediate_values={int(step): value for step, value in outcome.seen.items()},
    )


def _state(outcome: Outcome) -> TrialState:
    from optuna.trial import TrialState

    if outcome.lost:
        return TrialState.PRUNED if outcome.seen else TrialState.FAIL
    return TrialState.RUNNING if outcome.score is None else TrialState.COMPLETE


def _seed(contestant: Contestant, search: SearchOptions, number: int) -> int:
    return zlib.crc32(f"{search.seed}/{contestant.name}/{number}".encode())


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep optuna from announcing studies and experimental options that the reader cannot act on."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("random and tpe need optuna; pip install 'foretoken[sweep]'") from None
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
