"""What foretoken replaces or reads of other libraries though it is not part of what they promise to keep: patched.tsv.

``docs/patched.md`` is made of this table, and ``tests/unit/test_patched.py`` holds it against the code and against the
installed versions: a name that is gone, or that is used here and not listed, fails there.
"""

import csv
from pathlib import Path
from typing import NamedTuple


class Patch(NamedTuple):
    """One attribute or class of another library.

    Attributes:
        path: where it is; of an attribute that only instances have, its class or module comes before it.
        how: ``class swapped``, ``replaced``, ``registered``, ``overridden`` or ``read``.
        why: what it is needed for.
        undone: when what is changed becomes as before; empty for what is only read, or overridden in a class of ours.
        since: the first version of the library that has it; empty for every version that foretoken runs with.
    """

    path: str
    how: str
    why: str
    undone: str
    since: str

    @property
    def library(self) -> str:
        """The library's module."""
        return self.path.partition(".")[0]


def _rows():
    with Path(__file__).with_suffix(".tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            for path in row.pop("paths").split():
                yield Patch(path, **row)


PATCHED = tuple(_rows())
