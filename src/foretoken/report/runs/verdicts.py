"""Verdicts: whether the best method of a task is better than the baselines on the same test documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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
    """The best method of a task and model by validation, compared with each baseline."""

    title: str
    group: RunGroup
    baselines: Mapping[str, Versus]
    sentence: str

    @property
    def versus(self) -> Versus:
        """The first of the comparisons; all have the same metric."""
        return next(iter(self.baselines.values()))


def verdicts(results: Results) -> list[Verdict]:
    """Return a verdict for every task and model that has baselines and a tested method."""
    several = len({group.model for group in results.chosen}) > 1
    tasks = by(results.chosen, lambda group: group.task)
    judged = []
    for (task, model), alike in by(results.chosen, lambda group: (group.task, group.model)).items():
        tested = [group for group in alike if group.first.method != TF_IDF and group.split == TEST]
        title = f"{task}, {model}" if several else task
        item = _verdict(title, best_by_validation(tested), tasks[task]) if tested else None
        judged += [item] if item is not None else []
    return judged


def _verdict(title: str, group: RunGroup, alike: Sequence[RunGroup]) -> Verdict | None:
    by_run = [_answers(run) for run in group.runs if run.scores(TEST)]
    seeds = [item for item in by_run if item is not None]
    if len(seeds) < len(by_run) or not seeds or any(item.keys() != seeds[0].keys() for item in seeds):
        return None
    measured = {name: item for name, item in _baselines(group, alike) if _same_documents(item, seeds[0])}
    compared = {name: _versus(group, seeds, item) for name, item in measured.items()}
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
    """Yield the baselines of a task by name: its tf-idf runs, then those that another run has measured."""
    tfidf = next((item for item in alike if item.first.method == TF_IDF and item.split == TEST), None)
    if tfidf is not None:
        yield TF_IDF, [rows for run in tfidf.runs if (rows := _answers(run)) is not None]
    for run in (run for item in (group, *alike) for run in item.runs):
        beside = _beside(run)
        if beside:
            yield from ((name, item) for name, item in beside.items() if name != TF_IDF or tfidf is None)
            return


def _beside(run: Run) -> dict[str, Sequence[Answers]]:
    """Return the answers of the baselines that a run has measured."""
    try:
        table = run.baselines()
    except DataError:
        return {}
    by_name: dict[str, Sequence[Answers]] = {}
    for name in sorted(set(map(str, table["baseline"].to_pylist())), reverse=True):
        with suppress(DataError):
            by_name[name] = [answers(table.filter(pc.equal(table["baseline"], name)))]
    return by_name


def _answers(run: Run) -> Answers | None:
    try:
        return answers(run.predictions())
    except DataError:
        return None


def _same_documents(baseline: Sequence[Answers], seed: Answers) -> bool:
    """Tell whether a baseline was measured on the same documents and labels."""
    return bool(baseline) and all(
        item.keys() == seed.keys() and all(item[key][0] == label for key, (label, _) in seed.items())
        for item in baseline
    )


def _versus(group: RunGroup, seeds: Sequence[Answers], baseline: Sequence[Answers]) -> Versus | None:
    keys = list(seeds[0])
    labels = [seeds[0][key][0] for key in keys]
    systems = [[[item[key][1] for key in keys] for item in items] for items in (seeds, baseline)]
    try:
        return versus(group.first.problem, group.metric, labels, *systems, classes=group.first.classes)
    except (KeyError, TypeError, ValueError):  # answers of another task; the log names such runs
        return None
