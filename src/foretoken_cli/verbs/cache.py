"""`foretoken cache`: show or clear the cache of tokenised data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from foretoken.errors import ConfigError, quoted
from foretoken.files import CACHE_VARIABLE, cache_folder, os_errors_as_save_error
from foretoken_cli.console import described, say, table
from foretoken_cli.parser import Parser, whole

if TYPE_CHECKING:
    from foretoken.training.tokens.cache import Entry

_HEADER = ("data", "holds", "entries", "MB", "last used")
_ENTRY_HEADER = ("key", "data", "holds", "MB", "last used")
_SHOWN = 12  # characters of a key
_EPILOG = f"""
${CACHE_VARIABLE} names another folder; 0 switches the cache off. $FORETOKEN_CACHE_LIMIT sets its size, e.g. 500MB.
"""


def run(arguments: Sequence[str]) -> int:
    """Print what is cached, or remove it."""
    options = _parser().parse_args(arguments)
    if options.clear is None and options.unused is not None:
        raise ConfigError("--unused says what --clear removes; give both")
    root = cache_folder()
    if root is None:
        say(f"nothing is cached: {CACHE_VARIABLE} switches it off")
        return 0
    from foretoken.training.tokens.cache import entries, remove_entry, size_limit

    limit = size_limit()
    with os_errors_as_save_error(root):
        found = entries(root)
    chosen = _chosen(found, options)
    if options.clear is None:
        _show(chosen, in_detail=options.entries)
        say(f"{root}: {_count(chosen)} of at most {_megabytes(limit)} MB")
        return 0
    for entry in chosen:
        with os_errors_as_save_error(entry.path):
            remove_entry(entry.path)
    say(f"{root}: removed {_count(chosen)}")
    return 0


def _chosen(entries: Sequence[Entry], options: argparse.Namespace) -> list[Entry]:
    """Return the entries that the options name; all of them if they name none.

    Raises:
        ConfigError: there is no entry of a key.
    """
    keys = options.clear or []
    for key in keys:
        if not any(entry.key.startswith(key) for entry in entries):
            raise ConfigError(f"--clear: no entry has the key {quoted(key)}; foretoken cache --entries lists them")
    kept = [entry for entry in entries if not keys or entry.key.startswith(tuple(keys))]
    return [entry for entry in kept if options.unused is None or entry.idle_days >= options.unused]


def _show(entries: Sequence[Entry], *, in_detail: bool) -> None:
    if in_detail:
        rows = [(entry.key[:_SHOWN], entry.name, entry.kind, *_size_and_use([entry])) for entry in entries]
        table(_ENTRY_HEADER, rows)
    elif entries:
        ordered = sorted(entries, key=_data_set)
        groups = [(data_set, list(group)) for data_set, group in groupby(ordered, key=_data_set)]
        table(_HEADER, [(*data_set, len(group), *_size_and_use(group)) for data_set, group in groups])


def _data_set(entry: Entry) -> tuple[str, str]:
    return entry.name, entry.kind


def _size_and_use(entries: Sequence[Entry]) -> tuple[str, str]:
    days = min(entry.idle_days for entry in entries)
    return _megabytes(sum(entry.size for entry in entries)), "today" if days < 1 else f"{days:.0f} days ago"


def _count(entries: Sequence[Entry]) -> str:
    size = _megabytes(sum(entry.size for entry in entries))
    return f"{len(entries)} entr{'y' if len(entries) == 1 else 'ies'}, {size} MB"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _parser() -> Parser:
    parser = Parser(
        prog="foretoken cache",
        description=described(__doc__),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--entries", action="store_true", help="list every entry with its key")
    parser.add_argument(
        "--clear", nargs="*", metavar="KEY", help="remove all entries, or those whose keys begin like these"
    )
    parser.add_argument(
        "--unused", type=whole(0, 100_000), metavar="DAYS", help="with --clear: only what was not used for so long"
    )
    return parser
