"""Whether the best method of a task is worth it beside the baselines, on the same test documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from foretoken.errors import DataError
from foretoken.metrics.table import positive_of
from foretoken.metrics.worth.paired import Versus, versus
from foretoken.metrics.worth.verdict import TF_IDF, hardest, verdict
from foretoken.report.runs.documents import Key, answers
from foretoken.report.runs.groups import TEST, Results, RunGroup, best_by_validation, by
from foretoken.report.runs.records import Run

Answers = Mapping[Key, tuple[Any, Any]]  # label and prediction of every test document


@dataclass(frozen=True)
class Verdict:
    """The best method of a task and model by validation, and each baseline beside it."""

    title: str
    group: RunGroup
    baselines: Mapping[str, Versus]
    sentence: str

    @property
    def versus(self) -> Versus:
        """How it compares with any of them: all are compared by one metric."""
        return next(iter(self.baselines.values()))


def verdicts(results: Results) -> list[Verdict]:
    """Return a verdict for every task and model that has baselines and a method that was tested."""
    several = len({group.model for group in results.chosen}) > 1
    tasks = by(results.chosen, lambda group: group.task)
    found = []
    for (task, model), alike in by(results.chosen, lambda group: (group.task, group.model)).items():
        tested = [group for group in alike if group.first.method != TF_IDF and group.split == TEST]
        title = f"{task}, {model}" if several else task
        made = _verdict(title, best_by_validation(tested), tasks[task]) if tested else None
        found += [made] if made is not None else []
    return found


def _verdict(title: str, group: RunGroup, alike: Sequence[RunGroup]) -> Verdict | None:
    own = [_answers(run) for run in group.runs if run.scores(TEST)]
    seeds = [item for item in own if item is not None]
    if len(seeds) < len(own) or not seeds or any(item.keys() != seeds[0].keys() for item in seeds):
        return None
    made = {name: item for name, item in _baselines(group, alike) if _same_documents(item, seeds[0])}
    compared = {name: _versus(group, seeds, item) for name, item in made.items()}
    known = {name: item for name, item in compared.items() if item is not None}
    if not known:
        return None
    name, first = hardest(known), group.first
    seeds_said = f", mean of {len(seeds)} seeds" if len(seeds) > 1 else ""
    sentence = verdict(
        known[name],
        name,
        problem=first.problem,
        positive=positive_of(first.problem, first.classes),
        who=f"{title}: {group.label}{seeds_said}",
    )
    return Verdict(title, group, known, sentence)


def _baselines(group: RunGroup, alike: Sequence[RunGroup]) -> Iterator[tuple[str, Sequence[Answers]]]:
    """Yield the baselines of a task by name, its tf-idf runs first, then what other runs have measured."""
    made = next((one for one in alike if one.first.method == TF_IDF and one.split == TEST), None)
    if made is not None:
        found = [item for run in made.runs if (item := _answers(run)) is not None]
        yield TF_IDF, found
    for run in (run for one in (group, *alike) for run in one.runs):
        beside = _beside(run)
        if beside:
            yield from ((name, item) for name, item in beside.items() if name != TF_IDF or made is None)
            return


def _beside(run: Run) -> dict[str, Sequence[Answers]]:
    """Return the baselines that a run has measured itself."""
    try:
        table = run.baselines()
    except DataError:
        return {}
    found: dict[str, Sequence[Answers]] = {}
    for name in sorted(set(map(str, table["baseline"].to_pylist())), reverse=True):
        rows = answers(table.filter(pc.equal(table["baseline"], name)))
        if not isinstance(rows, str):
            found[name] = [rows]
    return found


def _answers(run: Run) -> Answers | None:
    try:
        found = answers(run.predictions())
    except DataError:
        return None
    return None if isinstance(found, str) else found


def _same_documents(baseline: Sequence[Answers], own: Answers) -> bool:
    """Tell whether a baseline was measured on the same documents and labels."""
    return bool(baseline) and all(
        item.keys() == own.keys() and all(item[key][0] == label for key, (label, _) in own.items()) for item in baseline
    )


def _versus(group: RunGroup, seeds: Sequence[Answers], baseline: Sequence[Answers]) -> Versus | None:
    keys = list(seeds[0])
    labels = [seeds[0][key][0] for key in keys]
    one, other = ([[item[key][1] for key in keys] for item in items] for items in (seeds, baseline))
    run = group.first
    try:
        return versus(run.problem, group.metric, labels, one, other, classes=run.classes)
    except (KeyError, TypeError, ValueError):  # answers that are not of the task, whose run is named elsewhere
        return None
