"""The tables of one task, and those of all runs: statistics, candidates, comparisons, budgets, what did not finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, isclose

from foretoken.metrics.statistics import Bootstrap, TTest, expected_validation_performance, summary
from foretoken.report.render.table import Cell, Table, words
from foretoken.report.runs.compare import Comparison
from foretoken.report.runs.groups import VALIDATION, Group, Results, by
from foretoken.report.tables.matrices import MARK, score_column, with_mark
from foretoken.report.tables.scores import ABSENT, CALIBRATION, greater_is_better, heading, printed, spread

_BY_VALIDATION = "Chosen by the mean over seeds on validation; test scores play no part in it."
_FIRST = "The first of two is the better one by validation."
_NOT_IN_METRICS = (*CALIBRATION, "loss")
_ACCURACY, _MICRO = "accuracy", ("precision_micro", "recall_micro", "f1_micro")  # alike where a text has one label


def seeds_table(results: Results, task: str) -> Table:
    """Return the task's metric over seeds: number, mean, deviation, median and range."""
    groups = results.of_task(task)
    metric = groups[0].metric
    searched = any(group.setting for group in groups)
    settings = [words(group.setting or ABSENT) if searched else [] for group in groups]
    rows = tuple(
        (*_named(group, results), *setting, *_statistics(group))
        for group, setting in zip(groups, settings, strict=True)
    )
    names = (*_names(results), *(["Setting"] if searched else []))
    header = (*names, "n", "Mean", "Std", "Median", "Min", "Max", "Validation")
    caption = f"{heading(metric)} on test. {_BY_VALIDATION}"
    return Table(f"{heading(metric)} over seeds", header, rows, with_mark(caption, rows), names=len(names))


def metrics_table(results: Results, task: str, metrics: Sequence[str] | None = None) -> Table | None:
    """Return the mean of every metric but those of calibration, or of the given ones; None where there is none."""
    groups = results.of_task(task)
    measured = list(dict.fromkeys(name for group in groups for name in group.measured()))
    wanted = [name for name in measured if (name in metrics if metrics else name not in _NOT_IN_METRICS)]
    if not wanted:
        return None
    alike = [name for name in wanted if name in _MICRO and _is_accuracy(name, groups)]
    wanted = [name for name in wanted if name not in alike]
    columns = [score_column(groups, name, results.average) for name in wanted]
    rows = tuple((*_named(group, results), *cells) for group, *cells in zip(groups, *columns, strict=True))
    names = _names(results)
    told = f" {', '.join(map(heading, alike))}: equal to accuracy in every run, and not shown again." if alike else ""
    caption = with_mark(f"{results.average.capitalize()} ± standard deviation over seeds, on test.{told}", rows)
    return Table("Every metric", (*names, *map(heading, wanted)), rows, caption, names=len(names))


def calibration_table(results: Results, task: str) -> Table | None:
    """Return the errors of calibration; None where the task has no probabilities."""
    table = metrics_table(results, task, CALIBRATION)
    if table is None:
        return None
    return Table(task, table.header, table.rows, f"{table.caption} Lower is better.", names=table.names)


def candidates_table(results: Results) -> Table:
    """Return every recipe that was tried, with its validation score, and which was chosen."""
    chosen = {id(group) for group in results.chosen}
    rows = tuple(
        (
            *words(group.task, group.label, group.model, group.setting or ABSENT, "yes" if id(group) in chosen else ""),
            Cell(str(len(group.runs)), len(group.runs)),
            _validation(group),
        )
        for group in results.groups
    )
    header = ("Task", "Method", "Model", "Setting", "Chosen", "Seeds", "Validation")
    return Table("All candidates", header, rows, _BY_VALIDATION, names=5)


def seed_tests_table(comparisons: Sequence[Comparison], task: str) -> Table | None:
    """Return the t-tests between the methods of a task; None where none is possible (see :func:`untested`)."""
    here = [item for item in comparisons if item.one.task == task]
    if not any(item.two_sided for item in here):
        return None
    metric = here[0].one.metric
    header = (
        *("First", "Second", "Difference", "95 % interval"),
        *("p two-sided", "Holm", "p first is better", "Holm", "Not possible"),
    )
    caption = f"{heading(metric)}. {_FIRST} Holm: corrected for all tests of the column."
    return Table(f"{task}, over seeds", header, _rows(here, _seed_test), caption, names=2)


def document_tests_table(comparisons: Sequence[Comparison], task: str) -> Table | None:
    """Return the paired bootstraps between the methods of a task; None where none is possible."""
    here = [item for item in comparisons if item.one.task == task]
    if not any(item.bootstrap for item in here):
        return None
    header = ("First", "Second", "Difference", "95 % interval", "p two-sided", "Holm", "Not possible")
    measure = next((f"{item.measure.capitalize()}, averaged over seeds. " for item in here if item.measure), "")
    caption = f"{measure}{_FIRST} Holm: corrected for all tests of the column."
    return Table(f"{task}, over documents", header, _rows(here, _document_test), caption, names=2)


def untested(comparisons: Sequence[Comparison], task: str) -> list[str]:
    """Say in a line why a task has no table of t-tests, and in another why it has none of bootstraps."""
    here = [item for item in comparisons if item.one.task == task]
    tests = (
        ("seeds", [item.two_sided for item in here], [item.no_t_test for item in here]),
        ("documents", [item.bootstrap for item in here], [item.no_bootstrap for item in here]),
    )
    return [
        f"{task}, over {what}: {'; '.join(_grouped(filter(None, reasons)))}."
        for what, made, reasons in tests
        if here and not any(made)
    ]


def _grouped(reasons: Iterable[str]) -> list[str]:
    """Return reasons once each; what several runs have alike (`run: reason`) with the first of them and their number.

    >>> _grouped(["a: no file", "b: no file", "a: no file", "one seed"])
    ['a: no file (and 1 more)', 'one seed']
    """
    alike = by(dict.fromkeys(reasons), lambda reason: reason.partition(": ")[2] or reason)
    return [first if not more else f"{first} (and {len(more)} more)" for first, *more in alike.values()]


def budget_table(results: Results, task: str) -> Table | None:
    """Return the best validation score to expect of k assignments (Dodge et al. 2019); None where no method has two.

    An assignment of hyperparameters counts once, with the mean of its seeds.
    """
    rows_of = by([group for group in results.groups if group.task == task], lambda group: (group.model, group.label))
    scores = {
        key: [group.validation for group in same if group.validation is not None] for key, same in rows_of.items()
    }
    most = max((len(values) for values in scores.values()), default=0)
    if most < 2:
        return None
    metric = results.of_task(task)[0].metric
    budgets = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
    several = len(_names(results)) > 1
    rows = tuple(
        (*words(label, *([model] if several else [])), *_expected(metric, values, budgets))
        for (model, label), values in scores.items()
        if values
    )
    header = (*_names(results), *(f"k = {budget}" for budget in budgets))
    caption = (
        f"Expected best {heading(metric)} on validation of k settings drawn from those that were run, each with the "
        "mean of its seeds."
    )
    return Table("Expected validation performance", header, rows, caption, names=len(_names(results)))


def left_out_table(results: Results) -> Table | None:
    """Return the runs that are not counted, each with its reason; None where all are."""
    rows = tuple(
        tuple(words(run.name, run.place, run.status, run.task, run.label, run.seed, reason))
        for run, reason in results.left_out
    )
    header = ("Run", "Folder", "Status", "Task", "Method", "Seed", "Reason")
    return Table("Runs that are not counted", header, rows, names=len(header)) if rows else None


def p_value(value: float | None) -> Cell:
    """Return a p-value with three decimals.

    >>> p_value(0.0312).text, p_value(0.00002).text, p_value(None).text
    ('0.031', '< 0.001', '-')
    """
    if value is None:
        return Cell(ABSENT)
    return Cell("< 0.001" if value < 0.001 else f"{value:.3f}", value)


def signed(metric: str, value: float | None) -> Cell:
    """Return a difference with its sign.

    >>> signed("accuracy", 0.012).text, signed("accuracy", -0.012).text
    ('+1.2', '-1.2')
    """
    if value is None:
        return Cell(ABSENT)
    return Cell(f"{'+' if value > 0 else ''}{printed(metric, value)}", value)


def _is_accuracy(metric: str, groups: Sequence[Group]) -> bool:
    """Tell whether a metric equals accuracy in every run."""
    scores = [score for group in groups for run in group.runs if (score := run.scores(group.split))]
    return all(isclose(score.get(metric, inf), score.get(_ACCURACY, -inf)) for score in scores)


def _names(results: Results) -> tuple[str, ...]:
    several = len({group.model for group in results.chosen}) > 1
    return ("Method", "Model") if several else ("Method",)


def _named(group: Group, results: Results) -> list[Cell]:
    return words(group.label, group.model)[: len(_names(results))]


def _statistics(group: Group) -> list[Cell]:
    values = group.values(group.metric)
    if not values:
        return [Cell("0", 0), *words(*[ABSENT] * 5), _validation(group)]
    numbers = summary(values)
    mark = MARK if group.split == VALIDATION else ""
    spans = (numbers.std, numbers.median, numbers.minimum, numbers.maximum)
    return [
        Cell(str(numbers.n), numbers.n),
        Cell(printed(group.metric, numbers.mean) + mark, numbers.mean),
        *(Cell(printed(group.metric, value), value) for value in spans),
        _validation(group),
    ]


def _validation(group: Group) -> Cell:
    values = group.values(group.metric, VALIDATION)
    if not values:
        return Cell(ABSENT)
    numbers = summary(values)
    return Cell(spread(group.metric, numbers.mean, numbers.std), numbers.mean)


def _rows(
    comparisons: Sequence[Comparison], tested: Callable[[Comparison], list[Cell]]
) -> tuple[tuple[Cell, ...], ...]:
    """Return a row a comparison: the two methods, their model where there are several, and what was tested."""
    several = len({item.one.model for item in comparisons}) > 1
    models = [f", {item.one.model}" if several else "" for item in comparisons]
    return tuple(
        (*words(item.one.label + model, item.other.label + model), *tested(item))
        for item, model in zip(comparisons, models, strict=True)
    )


def _seed_test(item: Comparison) -> list[Cell]:
    return [
        signed(item.one.metric, item.difference),
        _interval(item.one.metric, item.two_sided),
        p_value(item.two_sided.p_value if item.two_sided else None),
        p_value(item.holm_two_sided),
        p_value(item.one_sided.p_value if item.one_sided else None),
        p_value(item.holm_one_sided),
        Cell(item.no_t_test),
    ]


def _document_test(item: Comparison) -> list[Cell]:
    return [
        signed(_scale(item), item.bootstrap.difference if item.bootstrap else None),
        _interval(_scale(item), item.bootstrap),
        p_value(item.bootstrap.p_value if item.bootstrap else None),
        p_value(item.holm_bootstrap),
        Cell(item.no_bootstrap),
    ]


def _scale(item: Comparison) -> str:
    """Return a metric that is printed as the measure of documents is."""
    return "mse" if item.one.first.problem == "regression" else "accuracy"


def _interval(metric: str, test: TTest | Bootstrap | None) -> Cell:
    if test is None:
        return Cell(ABSENT)
    return Cell(f"{signed(metric, test.lower).text} to {signed(metric, test.upper).text}")


def _expected(metric: str, values: Sequence[float], budgets: Sequence[int]) -> list[Cell]:
    means, stds = expected_validation_performance(values, greater_is_better=greater_is_better(metric))
    return [
        Cell(spread(metric, means[k - 1], stds[k - 1]), float(means[k - 1])) if k <= len(values) else Cell(ABSENT)
        for k in budgets
    ]
