"""Tables in the papers' layout: a method in every row, a task in every column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from foretoken.metrics.statistics import summary
from foretoken.report.render.table import Cell, Table, ranked
from foretoken.report.runs.groups import MEAN, MEDIAN, TEST, VALIDATION, Group, Results
from foretoken.report.tables.scores import ABSENT, greater_is_better, heading, spread

MARK = " †"
_MARKED = "† on validation: the test split was not looked at."
_HOW = "± standard deviation over seeds, on test. Best in bold, second best underlined."
_PAPER = ("precision_macro", "recall_macro", "f1_micro")  # prefix-propagation, table 2


class Column(NamedTuple):
    """A metric on a task."""

    task: str
    metric: str


def main_table(results: Results) -> Table:
    """Return every task's own metric."""
    columns = [Column(task, results.of_task(task)[0].metric) for task in results.tasks]
    return _matrix("Score on each task", results, columns, f"{_percent(results)} Trained: share of the parameters.")


def paper_table(results: Results) -> Table:
    """Return the layout of table 2 of prefix-propagation: macro P and R and micro F1 where a task has them."""
    columns = []
    for task in results.tasks:
        groups = results.of_task(task)
        classes = all(set(_PAPER) <= set(group.measured()) for group in groups)
        columns += [Column(task, metric) for metric in (_PAPER if classes else (groups[0].metric,))]
    return _matrix("Precision and recall (macro) and F1 (micro)", results, columns, _percent(results))


def ece_table(results: Results) -> Table | None:
    """Return the layout of table 3 of prefix-propagation; None where no task has probabilities."""
    columns = [
        Column(task, "ece") for task in results.tasks if any(group.values("ece") for group in results.of_task(task))
    ]
    if not columns:
        return None
    return _matrix("Expected calibration error", results, columns, f"{how(results)} Lower is better.")


def how(results: Results) -> str:
    """Say what the numbers of a table are."""
    return f"{results.average.capitalize()} {_HOW}"


def _percent(results: Results) -> str:
    return f"{how(results)} Scores times 100."


def score_cell(group: Group | None, metric: str, average: str = MEAN) -> Cell:
    """Return mean or median and deviation of a metric over the group's seeds, marked where it is not of the test."""
    values = group.values(metric) if group else []
    if not group or not values:
        return Cell(ABSENT)
    numbers = summary(values)
    sign = MARK if group.split == VALIDATION else ""
    middle = numbers.median if average == MEDIAN else numbers.mean
    return Cell(spread(metric, middle, numbers.std) + sign, middle)


def score_column(groups: Sequence[Group | None], metric: str, average: str = MEAN) -> list[Cell]:
    """Return a metric of every group, ranked; a validation score competes only where there is no other."""
    cells = [score_cell(group, metric, average) for group in groups]
    tested = any(
        group and group.split == TEST and cell.value is not None for group, cell in zip(groups, cells, strict=True)
    )
    competing = [not tested or (group is not None and group.split == TEST) for group in groups]
    return ranked(cells, greater_is_better=greater_is_better(metric), competing=competing)


def with_mark(caption: str, rows: Sequence[Sequence[Cell]]) -> str:
    """Return the caption, with the meaning of the mark where it is used."""
    return f"{caption} {_MARKED}".strip() if any(cell.text.endswith(MARK) for row in rows for cell in row) else caption


def seeds_of(groups: Sequence[Group]) -> str:
    """Return the number of seeds, or its range."""
    return _range(sorted({len(group.runs) for group in groups}), "{}")


def percent_of(groups: Sequence[Group]) -> Cell:
    """Return the share of trained parameters, or its range where the tasks' heads differ in size."""
    shares = sorted({group.percent for group in groups if group.percent is not None})
    return Cell(_range(shares, "{:.3g}") or ABSENT, shares[0] if shares else None)


def _matrix(title: str, results: Results, columns: Sequence[Column], caption: str) -> Table:
    models = sorted({group.model for group in results.chosen})
    keys = sorted({(group.model, group.label) for group in results.chosen})
    members = {key: [group for group in results.chosen if (group.model, group.label) == key] for key in keys}
    scored = [
        score_column([_on(members[key], column.task) for key in keys], column.metric, results.average)
        for column in columns
    ]
    several = len(models) > 1
    rows = tuple(
        (
            Cell(label),
            *([Cell(model)] if several else []),
            percent_of(members[model, label]),
            *(column[index] for column in scored),
            Cell(seeds_of(members[model, label])),
        )
        for index, (model, label) in enumerate(keys)
    )
    fixed = ("Method", *(["Model"] if several else []), "Trained %")
    return Table(
        title,
        (*fixed, *(heading(column.metric) for column in columns), "Seeds"),
        rows,
        with_mark(caption if several or not models else f"{caption} Model: {models[0]}.", rows),
        names=2 if several else 1,
        heads=(("", len(fixed)), *_heads(columns), ("", 1)),
    )


def _heads(columns: Sequence[Column]) -> list[tuple[str, int]]:
    tasks = list(dict.fromkeys(column.task for column in columns))
    return [(task, sum(column.task == task for column in columns)) for task in tasks]


def _on(groups: Sequence[Group], task: str) -> Group | None:
    return next((group for group in groups if group.task == task), None)


def _range(values: Sequence[float], form: str) -> str:
    texts = list(dict.fromkeys(form.format(value) for value in values))
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}" if texts else ""
