"""What the verbs print: results on stdout as tables, everything else as lines on stderr."""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence

_OURS = r"foretoken(\.|$)"


def fail(message: str) -> None:
    """Say an error."""
    print(f"foretoken: error: {message}", file=sys.stderr)


def described(docstring: str | None) -> str:
    """Return what a verb does, from its module's first line (verb, colon, what it does)."""
    return (docstring or "").partition(": ")[2]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: drawn on a terminal, aligned text in a pipe or file."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(header, cells)
        return
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    for line in (header, *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def is_main_process() -> bool:
    """Tell whether this process is the one that speaks (`torchrun` and `accelerate launch` start several)."""
    return os.environ.get("RANK", "0") == "0"


def log_to_stderr(*, debug: bool = False) -> None:
    """Show foretoken's log as plain lines on stderr, once; its debug lines too if asked."""
    logger = logging.getLogger("foretoken")
    if not any(isinstance(handler, _StderrLines) for handler in logger.handlers):
        logger.addHandler(_StderrLines())
    usual = logging.INFO if is_main_process() else logging.WARNING
    logger.setLevel(logging.DEBUG if debug else usual)


def quiet_libraries() -> None:
    """Keep other libraries' warnings and bars away from the user, who can do nothing about them."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not sys.warnoptions:
        warnings.filterwarnings("ignore")
        warnings.filterwarnings("default", module=_OURS)
        warnings.showwarning = _one_line


class _StderrLines(logging.Handler):
    """Write to whatever stderr is now, so that a progress bar can keep itself below the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        print(f"foretoken: {prefix}{record.getMessage()}", file=sys.stderr)


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    print(f"foretoken: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _draw(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Draw with thin lines, so that wide tables fit 80 columns; a row's name, its first cell, stays whole."""
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    widest = max((len(row[0]) for row in rows), default=1)
    first = Column("\n".join(textwrap.wrap(header[0], widest, break_long_words=False)), no_wrap=True)
    rest = [Column(name, overflow="fold") for name in header[1:]]
    drawn = Table(first, *rest, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for row in rows:
        drawn.add_row(*row)
    Console(markup=False, emoji=False, highlight=False).print(drawn)
