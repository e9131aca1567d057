"""The options that say which data to read and how to split them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from foretoken.data.tasks import TASKS
from foretoken.errors import ConfigError, did_you_mean

HYPERPARTISAN_SPLITS = ("clean", "longformer")
REMOVABLE = ("headers", "footers", "quotes")


@dataclass(frozen=True)
class DataOptions:
    """Which documents to read, and how they become train, validation and test.

    Raises:
        ConfigError: values that cannot be used; all of them are named in one message.

    >>> DataOptions(task="pydocs").validation_fraction
    0.1
    """

    task: str | None = field(
        default=None,
        metadata={"help": f"A built-in task: {', '.join(TASKS)}. Leave empty to read your own data."},
    )
    path: str | None = field(
        default=None,
        metadata={
            "help": "A file (csv, tsv, jsonl, json, parquet), a folder, a hub name (owner/name, or "
            "hub:name); "
            "with a task: its raw data, or 'hub'."
        },
    )
    train: str | None = field(default=None, metadata={"help": "The training file or folder, instead of path."})
    validation: str | None = field(default=None, metadata={"help": "The validation file or folder, beside train."})
    test: str | None = field(default=None, metadata={"help": "The test file or folder, beside train."})
    text_column: str = field(default="text", metadata={"help": "The column that holds the text."})
    label_column: str = field(default="label", metadata={"help": "The column that holds the label."})
    config_name: str | None = field(default=None, metadata={"help": "The configuration of a hub data set."})
    split: str = field(
        default="clean",
        metadata={
            "help": "For hyperpartisan: clean (stratified, no article in two splits) or longformer "
            "(the published split, which leaks; for comparison with the literature only)."
        },
    )
    remove: tuple[str, ...] = field(
        default=REMOVABLE,
        metadata={"help": "For 20newsgroups: what to strip from the posts, among headers, footers, quotes."},
    )
    validation_fraction: float = field(
        default=0.1,
        metadata={"help": "Share of the documents for validation, where the source has no such split."},
    )
    test_fraction: float = field(
        default=0.1,
        metadata={"help": "Share of the documents for the test, where the source has no such split."},
    )
    split_seed: int = field(default=0, metadata={"help": "Seed of the splits and subsamples made here."})
    max_train: int | None = field(
        default=None, metadata={"help": "Keep at most this many training documents, classes in proportion."}
    )
    max_validation: int | None = field(
        default=None, metadata={"help": "Keep at most this many validation documents, classes in proportion."}
    )
    max_test: int | None = field(
        default=None, metadata={"help": "Keep at most this many test documents, classes in proportion."}
    )
    labels: tuple[str, ...] | None = field(default=None, metadata={"help": "Keep only documents of these classes."})

    def __post_init__(self) -> None:
        for name in (
            "remove",
            "labels",
        ):  # recipes bring lists; a frozen value must not be changed from outside
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        problems = [*_source(self), *_unused(self), *_choices(self), *_numbers(self)]
        if problems:
            raise ConfigError("; ".join(problems))


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
        for name in ("task", "path", "train", "validation", "test", "text_column", "label_column")
        if getattr(options, name) == ""
    )
    return problems


def _unused(options: DataOptions) -> list[str]:
    """Name options that would be ignored in silence."""
    problems: list[str] = []
    if options.task is not None:
        own = [name for name in ("text_column", "label_column", "config_name") if _changed(options, name)]
        problems.extend(f"{name} is for your own data, and has no use with task {options.task!r}" for name in own)
        if options.path is not None and options.task in TASKS and not TASKS[options.task].needs_raw:
            problems.append(f"path has no use with task {options.task!r}, which reads installed packages")
    if options.task != "20newsgroups" and _changed(options, "remove"):
        problems.append(f"remove is for task '20newsgroups', got task {options.task!r}")
    return problems


def _changed(options: DataOptions, name: str) -> bool:
    default = next(item.default for item in fields(options) if item.name == name)
    return bool(getattr(options, name) != default)


def _choices(options: DataOptions) -> list[str]:
    problems = []
    if options.task and options.task not in TASKS:
        problems.append(
            f"task: no task {options.task!r}{did_you_mean(options.task, TASKS)}; the tasks are {', '.join(TASKS)}"
        )
    if options.split not in HYPERPARTISAN_SPLITS:
        problems.append(f"split must be one of {', '.join(HYPERPARTISAN_SPLITS)}, got {options.split!r}")
    elif options.split != "clean" and options.task != "hyperpartisan":
        problems.append(f"split={options.split!r} exists only for task 'hyperpartisan', got task {options.task!r}")
    problems.extend(_remove(options))
    if options.labels is not None:
        problems.extend(_labels(options.labels))
    if options.text_column == options.label_column:
        problems.append(f"text_column and label_column are both {options.text_column!r}: they must differ")
    return problems


def _remove(options: DataOptions) -> list[str]:
    if isinstance(options.remove, str):
        return [f"remove must be a list among {', '.join(REMOVABLE)}, got the string {options.remove!r}"]
    return [
        f"remove: {part!r} is not known{did_you_mean(str(part), REMOVABLE)}; choose among {', '.join(REMOVABLE)}"
        for part in options.remove
        if part not in REMOVABLE
    ]


def _labels(labels: tuple[str, ...] | str) -> list[str]:
    if isinstance(labels, str):
        return [f"labels must be a list of class names, got the string {labels!r}"]
    if not all(isinstance(label, str) for label in labels):
        return [f"labels must be class names (strings), got {list(labels)!r}: put numbers in quotes"]
    if len(set(labels)) < max(2, len(labels)):
        return [f"labels must name at least two different classes, each once; got {list(labels)!r}"]
    return []


def _numbers(options: DataOptions) -> list[str]:
    problems: list[str] = []
    fractions = {name: getattr(options, name) for name in ("validation_fraction", "test_fraction")}
    bad = {name: value for name, value in fractions.items() if not _is_number(value) or not 0 < value < 1}
    problems.extend(f"{name} must lie between 0 and 1 (both excluded), got {value!r}" for name, value in bad.items())
    if not bad and sum(fractions.values()) >= 1:
        problems.append(f"validation_fraction + test_fraction must be below 1, got {sum(fractions.values()):g}")
    if not _is_integer(options.split_seed):
        problems.append(f"split_seed must be an integer, got {options.split_seed!r}")
    for item in fields(options):
        value = getattr(options, item.name)
        if item.name.startswith("max_") and value is not None and not (_is_integer(value) and value >= 1):
            problems.append(f"{item.name} must be an integer of at least 1, got {value!r}: leave it out to keep all")
    return problems


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
