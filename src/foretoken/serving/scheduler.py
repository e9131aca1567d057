"""Which rows run together: those whose deadlines are nearest, of like length where padding is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from torch import Tensor

from foretoken.serving.adapters import Adapter
from foretoken.serving.tasks import Kind
from foretoken.training.tokens.encode import TokenRow


@dataclass(eq=False)
class Pending:
    """A request in the queue.

    Attributes:
        adapter: that it names.
        kind: of result.
        rows: what the model reads.
        future: gets the rows' results.
        arrived: when, in seconds of the engine's clock.
        deadline: until when it may wait.
        sizes: rows of each of its documents.
        is_one_of_many: other adapters are asked about the same documents.
    """

    adapter: Adapter
    kind: Kind
    rows: list[TokenRow]
    future: Future[list[Tensor]]
    arrived: float
    deadline: float
    sizes: list[int] = field(default_factory=list)
    is_one_of_many: bool = False
    results: dict[int, Tensor] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.done()


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a request."""

    request: Pending
    number: int

    @property
    def inputs(self) -> dict[str, Any]:
        """What the model reads."""
        return dict(self.request.rows[self.number])

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.request.rows[self.number]["input_ids"])


def near(rows: list[Row], tokens: int) -> list[Row]:
    """Return the first rows, up to a number of tokens: later ones that suited a batch better would overtake them."""
    sums = accumulate(row.length for row in rows)
    return rows[: sum(total <= tokens for total in sums)]


class Queue:
    """Rows that wait; it is not locked itself."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self.tokens = 0  # of all rows
        self.was_cut = False  # the last batch had no room for more

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, request: Pending) -> None:
        """Take up all rows of a request."""
        rows = [Row(request, number) for number in range(len(request.rows))]
        self._rows += rows
        self.tokens += sum(row.length for row in rows)

    def take(self, budget: int, *, padded: bool = True, ready: Callable[[Adapter], bool] = lambda _: True) -> list[Row]:
        """Take the next batch out of the queue.

        Of the rows that are ready the one with the nearest deadline is always among them, so none waits forever. The
        next ones join it; where padding counts, of those that two batches hold the nearest to it in length.

        Args:
            budget: tokens of a batch; one row may have more.
            padded: whether padding counts, as it does for models that compute it.
            ready: tells of an adapter whether its rows can run; the others stay.

        >>> queue = Queue()
        >>> queue.take(100)
        []
        """
        self.was_cut = False
        usable = {adapter for adapter in self.adapters() if ready(adapter)}
        rows = [row for row in self._rows if row.request.adapter in usable]
        if not rows:
            return []
        first = min(rows, key=lambda row: row.request.deadline)
        kind = first.request.kind
        others = [row for row in rows if row is not first and row.request.kind == kind]
        others.sort(key=lambda row: (row.request.deadline, row.number))  # those of a document are together
        if padded:
            whole, others = len(others), near(others, 3 * budget // 2)
            self.was_cut = len(others) < whole
            others.sort(key=lambda row: (abs(row.length - first.length), row.request.deadline))
        taken, longest, tokens = [first], first.length, first.length
        for row in others:
            longest, tokens = max(longest, row.length), tokens + row.length
            if (longest * (len(taken) + 1) if padded else tokens) > budget:
                self.was_cut = True
                break
            taken.append(row)
        gone = set(taken)
        self._keep([row for row in self._rows if row not in gone])
        return taken

    def adapters(self) -> set[Adapter]:
        """Return the adapters that rows wait for."""
        return {row.request.adapter for row in self._rows}

    def drop_over(self) -> None:
        """Leave out the rows of requests that have been answered or given up."""
        self._keep([row for row in self._rows if not row.request.is_over])

    def _keep(self, rows: list[Row]) -> None:
        self._rows, self.tokens = rows, sum(row.length for row in rows)

    def late(self, now: float) -> list[Pending]:
        """Return the requests whose deadline has passed."""
        return list(dict.fromkeys(row.request for row in self._rows if row.request.deadline <= now))

    def requests(self) -> list[Pending]:
        """Return all requests."""
        return list(dict.fromkeys(row.request for row in self._rows))
