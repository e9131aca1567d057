"""The progress table of a sweep: live on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from foretoken.errors import printable
from foretoken.sweeps.status import Standing
from foretoken.sweeps.tables import PROGRESS, done, progress_rows, runs_in_all

log = logging.getLogger(__name__)


class Show:
    """Shows the standing that it was given last, while its block lasts."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, markup=False, emoji=False, highlight=False)
        self._rows: list[list[str]] = []
        self._said: tuple[int, int] | None = None
        self._block = contextlib.ExitStack()

    def __enter__(self) -> Show:
        if self._console.is_terminal:
            self._block.enter_context(Live(get_renderable=self._table, console=self._console, redirect_stderr=False))
            self._block.enter_context(contextlib.redirect_stderr(LinesAbove(self._console)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._block.__exit__(kind, error, at)

    def update(self, found: Sequence[Standing]) -> None:
        """Show a new standing."""
        self._rows = progress_rows(found)
        counts = sum(done(item) for item in found), sum(runs_in_all(item) for item in found)
        if not self._console.is_terminal and counts != self._said:
            self._said = counts
            log.info("%d of %d runs done", *counts)

    def _table(self) -> Table:
        drawn = Table(*PROGRESS, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for row in self._rows:
            drawn.add_row(*map(printable, row))
        return drawn


class LinesAbove(io.TextIOBase):
    """A stderr that is no terminal, so that a run draws no bar of its own; its lines go above the table."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._rest = ""

    def writable(self) -> bool:
        """Whether one may write: always."""
        return True

    def write(self, text: str) -> int:
        """Print whole lines; keep the beginning of the next one."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._console.print(line, soft_wrap=True)
        return len(text)
