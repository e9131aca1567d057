"""Unusable rows, which raise an error or are left out and listed."""

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
ERROR, DROP = "error", "drop"  # policies for unusable rows


@dataclass(frozen=True)
class BadRow:
    """An unusable row: its number in its source, from 0, its id, its place, and the reason."""

    number: int
    id: str
    where: str
    reason: str


class UsedIds:
    """The ids of earlier rows, as hashes of 8 bytes: 5 million rows take 40 MB.

    >>> used = UsedIds()
    >>> used.add(["a", "b"]), used.add(["c", "a"])
    ([False, False], [False, True])
    """

    def __init__(self) -> None:
        self._sorted: list[Any] = []  # sorted arrays, each at least twice as long as the next

    def add(self, ids: Sequence[str]) -> list[bool]:
        """Add different ids, and return for each whether it was added before."""
        import numpy as np  # here, so that the help of a command does not import it

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
    """The unusable rows of a source, and the policy for them.

    Attributes:
        policy: ``error`` to raise an error that names the first, ``drop`` to leave them out.
        remedy: the option that leaves them out, for the error; None if there is none.
        rows: the rows that were left out.
        total: number of rows read, including these.
        start: number of rows in earlier pieces of the source.
        used_ids: ids of the earlier pieces; None if the source is read at once.
    """

    policy: str = ERROR
    remedy: str | None = None
    rows: list[BadRow] = field(default_factory=list)
    total: int = 0
    start: int = 0
    used_ids: UsedIds | None = None

    def set_aside(self, rows: Sequence[BadRow], count: int) -> None:
        """Add the unusable rows among ``count`` rows.

        Raises:
            DataError: the policy is ``error``, and there are any.
        """
        total = self.start + count
        if rows and self.policy == ERROR:
            said = f"; {len(rows):,} of {total:,} rows are not usable" if total > 1 else ""
            remedy = f", {self.remedy} leaves them out" if self.remedy and len(rows) < total else ""
            raise DataError(f"{rows[0].reason}{said}{remedy}")
        self.rows += rows
        self.total += count

    def summary(self) -> dict[str, Any]:
        """Return the record's entry on the rows that were left out, and log it; empty if there are none."""
        if not self.rows:
            return {}
        reasons = shown([row.reason for row in self.rows])
        _log.warning(
            "left out %s of %s rows that are not usable: %s", f"{len(self.rows):,}", f"{self.total:,}", reasons
        )
        listed = [asdict(row) for row in self.rows[:MOST_LISTED]]
        return {"bad_rows": {"count": len(self.rows), "of": self.total, "rows": listed}}
