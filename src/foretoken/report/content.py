"""What a report says and in which order, before it is HTML or Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foretoken.report.account import counted, summary_lines, warnings_of
from foretoken.report.figures import LEADING
from foretoken.report.render.drawing import Drawn
from foretoken.report.render.table import Table
from foretoken.report.runs.compare import SAMPLES, Comparison
from foretoken.report.runs.groups import Results
from foretoken.report.tables.benchmarks import benchmark_names, benchmark_table
from foretoken.report.tables.matrices import ece_table, main_table, paper_table
from foretoken.report.tables.methods import MethodText, method_texts
from foretoken.report.tables.origin import RecipeText, origin_table, protocol_lines, recipe_texts
from foretoken.report.tables.task import (
    budget_table,
    calibration_table,
    candidates_table,
    document_tests_table,
    left_out_table,
    metrics_table,
    seed_tests_table,
    seeds_table,
    untested,
)

_TEST_TABLES = (seed_tests_table, document_tests_table)
_TESTS = (
    "Every two methods of a task and model are compared on test. Over seeds: Welch's t-test, not paired. "
    f"Over documents: the mean of the seeds on each document, documents drawn with replacement {SAMPLES:,} times. "
    "The first test asks about another training run, the second about other documents."
)
_FOLDS = (
    "{} folds: each document is tested once, by a run that has not seen it, and a seed's test scores are those of all "
    "documents together; train and validation are those of the first fold."
)
_CHOICE = (
    "Candidates are the recipes of one method that differ in anything but the seed. "
    "The tables above show the one that is best by validation; "
    "where only some were measured on test, as by a sweep, the best of those."
)


@dataclass(frozen=True)
class Part:
    """Tables that belong together, with facts about them."""

    title: str
    tables: Sequence[Table]
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A section of the page; `name` is its anchor."""

    name: str
    title: str
    parts: Sequence[Part] = ()
    lines: Sequence[str] = ()
    figures: Sequence[Drawn] = ()
    methods: Sequence[MethodText] = ()
    recipes: Sequence[RecipeText] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (any(part.tables for part in self.parts) or self.figures or self.methods or self.recipes)


@dataclass(frozen=True)
class Report:
    """A whole report: what it answers with first, one picture and a line per task, then all else in sections."""

    results: Results
    summary: Sequence[str]
    picture: Drawn | None
    warnings: Sequence[str]
    sections: Sequence[Section]

    @property
    def run_count(self) -> str:
        """The number of run folders, in words."""
        return counted(len(self.results.runs), "run folder")


def compose(results: Results, comparisons: Sequence[Comparison], figures: Sequence[Drawn]) -> Report:
    """Return the report of these results; sections without content are left out."""
    picture = _picture(figures)
    others = [drawn for drawn in figures if drawn is not picture]
    made = _of_results(results, comparisons, others) if results.chosen else []
    methods = Section("methods", "Methods", methods=method_texts(results))
    kept = [part for part in (*made, _left_out(results), methods, _origin(results)) if not part.is_empty]
    return Report(results, summary_lines(results, comparisons), picture, warnings_of(results), kept)


def tables_for_latex(results: Results) -> list[Table]:
    """Return the tables of the papers' layout."""
    if not results.chosen:
        return []
    return [main_table(results), *_papers(results)]


def _picture(figures: Sequence[Drawn]) -> Drawn | None:
    """Return the figure that answers best at a glance, of those that could be drawn."""
    drawn = {one.name: one for one in figures if one.svg}
    return next((drawn[name] for name in LEADING if name in drawn), None)


def _of_results(results: Results, comparisons: Sequence[Comparison], figures: Sequence[Drawn]) -> list[Section]:
    tasks = results.tasks
    return [
        Section("figures", "Figures", figures=figures),
        Section("results", "Results", [Part("", [main_table(results), *_benchmarks(results)])]),
        Section("tasks", "Each task", [_task(results, task) for task in tasks]),
        Section("calibration", "Calibration", _calibration(results)),
        Section(
            "comparisons",
            "Comparisons",
            [Part("", _there(table(comparisons, task) for task in tasks for table in _TEST_TABLES))],
            lines=[_TESTS, *(line for task in tasks for line in untested(comparisons, task))],
        ),
        Section("candidates", "All candidates", [Part("", [candidates_table(results)])], lines=[_CHOICE]),
    ]


def _task(results: Results, task: str) -> Part:
    tables = [seeds_table(results, task), metrics_table(results, task), budget_table(results, task)]
    return Part(task, _there(tables), [_facts(results, task)])


def _benchmarks(results: Results) -> list[Table]:
    return _there(benchmark_table(results, name) for name in benchmark_names())


def _facts(results: Results, task: str) -> str:
    """Say how many documents the task has, and how many were cut; of the first run, and whether all have as many."""
    runs = [run for group in results.of_task(task) for run in group.runs]
    told = list(dict.fromkeys(_documents(run.values.get("documents") or {}) for run in runs))
    kind = f"Kind of task: {runs[0].problem}."
    if not told[0]:
        return kind
    more = " Other runs had other numbers." if len(told) > 1 else ""
    folds = f" {_FOLDS.format(len(runs[0].folds))}" if runs[0].folds else ""
    return f"{kind} Documents: {told[0]}.{folds}{more}"


def _documents(counts: dict[str, dict[str, int]]) -> str:
    return ", ".join(
        f"{split} {count.get('documents', '?')} ({count.get('truncated', '?')} truncated)"
        for split, count in counts.items()
    )


def _calibration(results: Results) -> list[Part]:
    tables = _there([ece_table(results), *(calibration_table(results, task) for task in results.tasks)])
    return [Part("", tables)]


def _papers(results: Results) -> list[Table]:
    """Return the papers' tables that say more than the main table does."""
    return _there([paper_table(results), ece_table(results)])


def _left_out(results: Results) -> Section:
    return Section("left-out", "Runs that are not counted", [Part("", _there([left_out_table(results)]))])


def _origin(results: Results) -> Section:
    tables = _there([origin_table(results)])
    lines = protocol_lines(results)
    return Section("origin", "How it was made", [Part("", tables)], lines=lines, recipes=recipe_texts(results))


def _there(tables: Iterable[Table | None]) -> list[Table]:
    return [table for table in tables if table is not None]
