"""`foretoken check`: look at data and recipe without training: columns, classes, lengths, and what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretoken.errors import ForetokenError, lines_of
from foretoken_cli.console import described, fail, say, table
from foretoken_cli.parser import parse_known
from foretoken_cli.verbs.train import leading_words

if TYPE_CHECKING:
    from foretoken.data.load import Loaded
    from foretoken.data.options import DataOptions
    from foretoken.training.look import Plan

_EPILOG = """
It takes what `foretoken train` takes, or the data alone, and exits with 2 if they cannot be trained on:
  foretoken check recipe.yaml --data.path mail.csv
  foretoken check --data.path mail.csv
"""
_MOST_COLUMNS, _MOST_CLASSES, _RAREST = 12, 15, 3


@dataclass(frozen=True)
class CheckCommand:
    """The command line of `foretoken check`; keys of the recipe are all its flags."""


def run(words: Sequence[str]) -> int:
    """Print what the data look like; exit code 2 if they cannot be trained on, with all that is wrong."""
    recipes, rest = leading_words(words)
    _, overrides = parse_known(
        CheckCommand,
        "check",
        rest,
        described(__doc__),
        usage="foretoken check [RECIPE] [--KEY VALUE ...]",
        epilog=_EPILOG,
    )
    if len(recipes) > 1 or not (recipes or overrides):
        fail("name one recipe, or the data: foretoken check --data.path mail.csv")
        return 2
    from foretoken.training.look import Plan

    plan = Plan.read(recipes[0] if recipes else None, overrides, may_be_data=True)
    problems = _look(plan)
    if problems:
        fail("\n  ".join([f"cannot be trained: {len(problems)} problem{'s' * (len(problems) > 1)}", *problems]))
        return 2
    say("can be trained")
    return 0


def _look(plan: Plan) -> list[str]:
    """Print what can be found out, and return what is wrong."""
    from foretoken.training.look import lengths_in_tokens, lengths_in_words

    problems, data, most = list(plan.errors), None, None
    with _notes() as notes:
        if plan.data is not None:
            problems += _print_columns(plan.data)
        try:
            data = plan.load_data()
        except ForetokenError as error:
            problems += lines_of(error)
    if data is not None:
        lengths = lengths_in_words(data)
        if "model" in plan.values and not problems:
            try:
                lengths, most = lengths_in_tokens(plan, data)
            except ForetokenError as error:
                problems += lines_of(error)
        _print_splits(data, lengths, most)
    for note in dict.fromkeys(notes):
        say(f"- {note}")
    return list(dict.fromkeys(problems))


@contextmanager
def _notes() -> Iterator[list[str]]:
    """Collect what the log says of data, in place of showing it."""
    log, notes = logging.getLogger("foretoken.data"), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    log.propagate = False
    try:
        yield notes
    finally:
        log.removeHandler(handler)
        log.propagate = True


def _print_columns(options: DataOptions) -> list[str]:
    """Print the columns of one's own table, and return what keeps them from being read."""
    from foretoken.data.columns import Look, looks_of, own_columns, sample

    if options.task is not None:
        return []
    problems, columns, looks = list[str](), options.columns, list[Look]()
    try:
        where, rows = sample(options)
        looks = looks_of(rows)
        columns = own_columns(options)
    except ForetokenError as error:
        problems += lines_of(error)
    roles = {columns.text: "text", columns.label: "label", columns.text_pair: "second text"}
    if looks:
        rows_of = [(repr(look.name), str(look), roles.get(look.name, "")) for look in looks[:_MOST_COLUMNS]]
        more = [(f"... {len(looks) - _MOST_COLUMNS} more", "", "")] if len(looks) > _MOST_COLUMNS else []
        table((f"columns of {where}", f"first {len(rows):,} rows", "read as"), [*rows_of, *more])
        say()
    return problems


def _print_splits(data: Loaded, lengths: Mapping[str, Sequence[int]], most: int | None) -> None:
    """Print how many documents and labels every split has, and how long they are."""
    from foretoken.training.look import counts_of

    counts, unit = counts_of(data), "words" if most is None else "tokens"
    names = [name for name, _ in counts["train"].most_common()] if counts else []
    shown = names if len(names) <= _MOST_CLASSES else [*names[: _MOST_CLASSES - _RAREST], *names[-_RAREST:]]
    rows: list[list[object]] = [["documents", *map(len, data.splits.values())]]
    rows += [[f"- {name}", *(counts[split][name] for split in data.splits)] for name in shown]
    rows += [[f"({len(names) - len(shown)} more classes)", *("" for _ in data.splits)]] * (len(shown) < len(names))
    for what, place in (("median", 0.5), ("90 %", 0.9), ("longest", 1.0)):
        rows.append([f"{unit}, {what}", *(values[int(place * (len(values) - 1))] for values in lengths.values())])
    table((data.problem, *data.splits), rows)
    say()
    long = [length for length in lengths["train"] if most is not None and length > most]
    if most is not None and long:
        documents, tokens = len(long) / len(lengths["train"]), sum(long) - most * len(long)
        say(
            f"- {documents:.0%} of the training documents are longer than {most:,} tokens, and "
            f"{tokens / sum(lengths['train']):.0%} of all tokens are beyond; a recipe with `chunks: {{}}` reads them"
        )
