"""The figures of a report, drawn one by one: a figure that fails is said on the page, and the others stay."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretoken.errors import cut, printable
from foretoken.report.runs.records import Run

if TYPE_CHECKING:
    from foretoken.report.figures import Figure

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drawn:
    """A figure as SVG and PNG, and as SVG for a phone; or why there is none."""

    name: str
    title: str
    caption: str
    svg: str = ""
    narrow: str = ""
    png: bytes = b""
    error: str = ""


def draw_all(runs: Sequence[Run]) -> list[Drawn]:
    """Return every figure that these runs have something for."""
    from foretoken.report.figures import FIGURES

    drawn = [_draw(name, figure, runs) for name, figure in FIGURES.items()]
    return [one for one in drawn if one is not None]


def _draw(name: str, figure: Figure, runs: Sequence[Run]) -> Drawn | None:
    from foretoken.report.figures import NARROW, to_png, to_svg

    try:
        canvas = figure.draw(runs)
        narrow = None if canvas is None else figure.draw(runs, width=NARROW)
        if canvas is None or narrow is None:
            return None
        svg, phone = (to_svg(canvas, name, title=figure.title), to_svg(narrow, f"{name}-narrow", title=figure.title))
        png = to_png(canvas)
    except Exception as error:  # whatever it is, the tables are worth having
        log.warning("the figure %s could not be drawn: %s: %s", name, type(error).__name__, error)
        log.debug("the figure %s", name, exc_info=True)
        return Drawn(name, figure.title, figure.caption, error=cut(printable(f"{type(error).__name__}: {error}"), 300))
    return Drawn(name, figure.title, figure.caption, svg, phone, png)
