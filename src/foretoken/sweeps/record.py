"""The record of a sweep, `sweep.json`: all candidates with their scores, what was chosen, and its test results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from foretoken.files import write_json
from foretoken.options import to_dict
from foretoken.outputs import refuse_foreign
from foretoken.sweeps.naming import params_label
from foretoken.sweeps.plan import Plan
from foretoken.sweeps.run_table import WAITING, Row
from foretoken.sweeps.status import Candidate, Standing, broken, deviation, is_over, measured_metrics
from foretoken.sweeps.sweep import sweep_counts

FILE = "sweep.json"


class Record:
    """Keeps the file as things stand; `place` says where the database is.

    Raises:
        SaveError: there is a file of that name which is no record of this sweep.
    """

    def __init__(self, plan: Plan, place: str) -> None:
        self.plan, self.place = plan, place
        self.path = plan.file.folder / FILE
        refuse_foreign(self.path, f'{{\n  "name": {json.dumps(plan.file.name, ensure_ascii=False)},\n  "status": ')
        self._written: dict[str, Any] | None = None

    def write(self, found: Sequence[Standing]) -> None:
        """Write the file, if anything has changed since this process wrote it last."""
        values = sweep_record(self.plan, self.place, found)
        if values != self._written:
            write_json(self.path, values)
            self._written = values


def sweep_record(plan: Plan, place: str, found: Sequence[Standing]) -> dict[str, Any]:
    """Return the record of how a sweep stands; `place` says where its database is."""
    file = plan.file
    return {
        "name": file.name,
        "status": "finished" if is_over(found) else "running",
        "database": place,
        "search": to_dict(file.search),
        "prune": None if file.prune is None else to_dict(file.prune),
        "seeds_for": file.seeds_for,
        "counts": sweep_counts(found),
        "contestants": [_contestant(item) for item in found],
        "failures": [{"run": row.run, "state": row.state, "error": row.error} for row in broken(found)],
    }


def _contestant(item: Standing) -> dict[str, Any]:
    chosen = item.selected
    return {
        "name": item.contestant.name,
        "compared": dict(item.contestant.compared),
        "seeds": list(item.contestant.seeds),
        "metric": item.contestant.metric,
        "counts": item.counts,
        "candidates": [_candidate(candidate, chosen) for candidate in item.candidates],
        "selected": None if chosen is None else chosen.params,
        "runs": [] if chosen is None else [row.run for row in chosen.rows.values()],
        "test": {} if chosen is None else measured_metrics(chosen),
    }


def _candidate(candidate: Candidate, chosen: Candidate | None) -> dict[str, Any]:
    rows = {
        seed: row
        for seed, row in candidate.rows.items()
        if row.state != WAITING or seed in candidate.contestant.search_seeds
    }
    return {
        "params": candidate.params,
        "label": params_label(candidate.params),
        "selected": candidate is chosen,
        "score": candidate.score,
        "std": None if candidate.score is None else deviation(candidate.scores),
        "runs": {row.run: _run(seed, row) for seed, row in rows.items()},
    }


def _run(seed: int, row: Row) -> dict[str, Any]:
    known = {"validation": row.validation, "test": row.test, "error": row.error}
    own = {"seed": seed, "state": row.state, "seconds": row.seconds}
    return own | {key: value for key, value in known.items() if value}
