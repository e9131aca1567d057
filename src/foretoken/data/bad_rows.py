"""Rows that are not usable: an error that names the first, or set aside and listed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

from foretoken.data.documents import shown
from foretoken.errors import DataError

_log = logging.getLogger(__name__)
MOST_LISTED = 1000  # bad rows in a record
ERROR, DROP = "error", "drop"  # what rows that are not usable come to


@dataclass(frozen=True)
class BadRow:
    """A row that is not usable: its number among all of its source, from 0, its id, where it is, and why."""

    number: int
    id: str
    where: str
    reason: str


class UsedIds:
    """The ids of the rows so far, 8 bytes of each: of 5 million rows they take 40 MB.

    >>> used = UsedIds()
    >>> used.add(["a", "b"]), used.add(["c", "a"])
    ([False, False], [False, True])
    """

    def __init__(self) -> None:
        self._sorted: list[Any] = []  # each at least twice as long as the next

    def add(self, ids: Sequence[str]) -> list[bool]:
        """Take ids that differ from each other, and tell for each whether it was there before."""
        import numpy as np  # not above: the help of a command needs none

        digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in ids)
        numbers = np.frombuffer(digests, dtype=np.uint64)
        before = np.zeros(len(numbers), dtype=bool)
        for known in self._sorted:
            before |= known[np.searchsorted(known, numbers).clip(max=len(known) - 1)] == numbers
        self._sorted.append(np.sort(numbers[~before]))
        while len(self._sorted) > 1 and len(self._sorted[-2]) < 2 * len(self._sorted[-1]):
            self._sorted[-2:] = [np.sort(np.concatenate(self._sorted[-2:]))]
        self._sorted = [known for known in self._sorted if len(known)]
        return [bool(is_known) for is_known in before]


@dataclass
class BadRows:
    """The rows that are not usable: an error that names the first, or set aside.

    Attributes:
        policy: ``error`` or ``drop``.
        remedy: the option that sets them aside, for the error; None where there is none.
        rows: those that were set aside.
        total: how many rows were read, with them.
        start: how many rows of their source are in earlier pieces of it.
        used_ids: of the earlier pieces; None: the source is read at once.
    """

    policy: str = ERROR
    remedy: str | None = None
    rows: list[BadRow] = field(default_factory=list)
    total: int = 0
    start: int = 0
    used_ids: UsedIds | None = None

    def set_aside(self, rows: Sequence[BadRow], count: int) -> None:
        """Take the bad ones of so many rows of a source.

        Raises:
            DataError: they are an error, or there are no others.
        """
        total = self.start + count
        if rows and self.policy == ERROR:
            said = f"; {len(rows):,} of {total:,} rows are not usable" if total > 1 else ""
            remedy = f", {self.remedy} leaves them out" if self.remedy and len(rows) < total else ""
            raise DataError(f"{rows[0].reason}{said}{remedy}")
        self.rows += rows
        self.total += count

    def summary(self) -> dict[str, Any]:
        """Return what a record says of the rows that were set aside, and log it; an empty one where there are none."""
        if not self.rows:
            return {}
        reasons = shown([row.reason for row in self.rows])
        _log.warning(
            "left out %s of %s rows that are not usable: %s", f"{len(self.rows):,}", f"{self.total:,}", reasons
        )
        listed = [asdict(row) for row in self.rows[:MOST_LISTED]]
        return {"bad_rows": {"count": len(self.rows), "of": self.total, "rows": listed}}
