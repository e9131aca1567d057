"""The options that say which data to read and how to split them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from foretoken.data.columns import CHOICES, Columns
from foretoken.data.problems import (
    CANDIDATES,
    CLASSIFICATION,
    MULTIPLE_CHOICE,
    PROBLEMS,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from foretoken.data.tasks.base import CLEAN
from foretoken.data.tasks.table import TASKS
from foretoken.errors import did_you_mean, quoted
from foretoken.options import check_fields, option

REMOVABLE = ("headers", "footers", "quotes")


@dataclass(frozen=True)
class DataOptions:
    """Which documents to read, and how they become train, validation and test.

    Raises:
        ConfigError: values that cannot be used; all of them are named in one message.

    >>> DataOptions(task="pydocs").validation_fraction
    0.1
    """

    task: str | None = option(f"A built-in task: {', '.join(TASKS)}. Leave empty to read your own data.", None)
    path: str | None = option(
        "A file (csv, tsv, jsonl, json, parquet), a folder, a hub name (owner/name, or hub:name); with a task: its raw "
        "data, or 'hub'.",
        None,
    )
    train: str | None = option("The training file or folder, instead of path.", None)
    validation: str | None = option("The validation file or folder, beside train.", None)
    test: str | None = option("The test file or folder, beside train.", None)
    problem: str = option(
        f"What is to be learned from your own data: {', '.join(PROBLEMS)}. Tasks know theirs.", CLASSIFICATION
    )
    text_column: str = option("The column that holds the text; for generation, the source.", "text")
    text_pair_column: str | None = option("The column that holds the second text, where there are pairs of them.", None)
    label_column: str = option("The column that holds the label; for generation, the target.", "label")
    config_name: str | None = option("The configuration of a hub data set.", None)
    split: str = option(
        "clean: nothing that is reported is selected by. official (GLUE and the like): the dev set is both validation "
        "and test, as most papers report it. longformer (hyperpartisan): the published split, which leaks.",
        "clean",
    )
    remove: tuple[str, ...] = option(
        "For 20newsgroups: what to strip from the posts, among headers, footers, quotes.", REMOVABLE
    )
    join_documents: bool = option(
        "For token classification: one row per document, its sentences joined, not per sentence.", False
    )
    validation_fraction: float = option(
        "Share of the documents for validation, where the source has no such split.", 0.1, above=0, below=1
    )
    test_fraction: float = option(
        "Share of the documents for the test, where the source has no such split.", 0.1, above=0, below=1
    )
    split_seed: int = option("Seed of the splits and subsamples made here.", 0)
    max_train: int | None = option(
        "Keep at most this many training documents, classes in proportion.", None, at_least=1
    )
    max_validation: int | None = option(
        "Keep at most this many validation documents, classes in proportion.", None, at_least=1
    )
    max_test: int | None = option("Keep at most this many test documents, classes in proportion.", None, at_least=1)
    labels: tuple[str, ...] | None = option("Keep only documents of these classes.", None)

    @property
    def columns(self) -> Columns:
        """The columns of one's own tables."""
        return Columns(self.text_column, self.label_column, self.text_pair_column, self.problem)

    def is_given(self, name: str) -> bool:
        """Tell whether an option has another value than its default."""
        default = next(item.default for item in fields(self) if item.name == name)
        return bool(getattr(self, name) != default)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        check_fields(self, lambda: [*_source(self), *_unused(self), *_choices(self), *_shares(self)])


def _shares(options: DataOptions) -> list[str]:
    total = options.validation_fraction + options.test_fraction
    in_range = 0 < options.validation_fraction < 1 and 0 < options.test_fraction < 1
    return [f"validation_fraction + test_fraction must be below 1, got {total:g}"] if in_range and total >= 1 else []


def _source(options: DataOptions) -> list[str]:
    problems = []
    files = [name for name in ("train", "validation", "test") if getattr(options, name) is not None]
    if options.task is None and options.path is None and not files:
        problems.append(
            f"no data named: set task (one of {', '.join(TASKS)}), path (a file, folder or hub name) or train (a file)"
        )
    if files and (options.path is not None or options.task is not None):
        other = "path" if options.path is not None else "task"
        problems.append(f"both {other} and {files[0]} are set: use either {other}, or files per split")
    elif files and options.train is None:
        problems.append(f"{files[0]} is set without train: name the training file too")
    problems.extend(
        f"{name} is an empty string: leave it out or name a file"
        for name in ("task", "path", "train", "validation", "test", "text_column", "text_pair_column", "label_column")
        if getattr(options, name) == ""
    )
    return problems


_OWN = ("problem", "text_column", "text_pair_column", "label_column", "config_name")


def _unused(options: DataOptions) -> list[str]:
    """Name options that would be ignored in silence."""
    problems: list[str] = []
    if options.task is not None:
        own = [name for name in _OWN if options.is_given(name)]
        problems.extend(f"{name} is for your own data, and has no use with task {quoted(options.task)}" for name in own)
        if options.path is not None and options.task in TASKS and not TASKS[options.task].needs_raw:
            problems.append(f"path has no use with task {quoted(options.task)}, which reads installed packages")
    else:
        problems.extend(_unused_by_problem(options))
    problem = TASKS[options.task].problem if options.task in TASKS else options.problem
    if options.join_documents and problem != TOKEN_CLASSIFICATION:
        problems.append(f"join_documents is for {TOKEN_CLASSIFICATION}, got data for {problem}")
    if options.task != "20newsgroups" and options.is_given("remove"):
        problems.append(f"remove is for task '20newsgroups', got task {quoted(options.task)}")
    return problems


def _unused_by_problem(options: DataOptions) -> list[str]:
    problems = []
    if options.problem in (TOKEN_CLASSIFICATION, CANDIDATES):
        columns = [name for name in ("text_column", "label_column") if options.is_given(name)]
        problems = [
            f"{name} has no use with problem {quoted(options.problem)}, which has no columns" for name in columns
        ]
    if options.text_pair_column is not None and options.problem not in (CLASSIFICATION, REGRESSION):
        problems.append(
            f"text_pair_column is for {CLASSIFICATION} and {REGRESSION}, got problem {quoted(options.problem)}"
        )
    if options.labels is not None and options.problem != CLASSIFICATION:
        problems.append(f"labels is for {CLASSIFICATION}, got problem {quoted(options.problem)}")
    return problems


def _choices(options: DataOptions) -> list[str]:
    problems = []
    if options.task and options.task not in TASKS:
        problems.append(
            f"task: no task {quoted(options.task)}{did_you_mean(options.task, TASKS)}; the tasks are {', '.join(TASKS)}"
        )
    if options.problem not in PROBLEMS:
        problems.append(
            f"problem: no problem {quoted(options.problem)}{did_you_mean(str(options.problem), PROBLEMS)}; "
            f"the problems are {', '.join(PROBLEMS)}"
        )
    problems.extend(_split(options))
    problems.extend(_remove(options))
    if options.labels is not None:
        problems.extend(_labels(options.labels))
    problems.extend(_columns(options))
    return problems


def _split(options: DataOptions) -> list[str]:
    if options.task is not None and options.task not in TASKS:
        return []  # said already
    allowed = TASKS[options.task].splits if options.task else (CLEAN,)
    owners = [repr(name) for name, task in TASKS.items() if options.split in task.splits]
    if options.split in allowed:
        return []
    if owners:
        return [
            f"split={quoted(options.split)} exists only for task{'s' if len(owners) > 1 else ''} {', '.join(owners)}, "
            f"got task {quoted(options.task)}"
        ]
    return [f"split must be one of {', '.join(allowed)}, got {quoted(options.split)}"]


def _columns(options: DataOptions) -> list[str]:
    roles: dict[str, str] = {CHOICES: "the choices"} if options.problem == MULTIPLE_CHOICE else {}
    problems = []
    for name in ("text_column", "text_pair_column", "label_column"):
        column = getattr(options, name)
        if column in roles:
            problems.append(f"{roles[column]} and {name} are both {quoted(column)}: they must differ")
        elif column is not None:
            roles[column] = name
    return problems


def _remove(options: DataOptions) -> list[str]:
    return [
        f"remove: {quoted(part)} is not known{did_you_mean(str(part), REMOVABLE)}; choose among {', '.join(REMOVABLE)}"
        for part in options.remove
        if part not in REMOVABLE
    ]


def _labels(labels: tuple[str, ...]) -> list[str]:
    if len(set(labels)) < max(2, len(labels)):
        return [f"labels must name at least two different classes, each once; got {quoted(list(labels))}"]
    return []
