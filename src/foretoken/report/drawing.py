"""The figures of a report; the page names a figure that fails and has the others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretoken.errors import cut, printable
from foretoken.report.runs.groups import Results

if TYPE_CHECKING:
    from foretoken.report.figures import Figure

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drawn:
    """A figure as SVG and PNG, or the error that prevented it."""

    name: str
    title: str
    caption: str
    svg: str = ""
    png: bytes = b""
    error: str = ""


def draw_all(results: Results) -> list[Drawn]:
    """Return the figures for which the results have data."""
    from foretoken.report.figures import FIGURES

    drawn = [_draw(name, figure, results) for name, figure in FIGURES.items()]
    return [item for item in drawn if item is not None]


def _draw(name: str, figure: Figure, results: Results) -> Drawn | None:
    from foretoken.report.figures import to_png, to_svg

    try:
        canvas = figure.draw(results)
        if canvas is None:
            return None
        return Drawn(name, figure.title, figure.caption, to_svg(canvas, name, title=figure.title), to_png(canvas))
    except Exception as error:  # the report is still of use without the figure
        log.warning("the figure %s could not be drawn: %s: %s", name, type(error).__name__, error)
        log.debug("the figure %s", name, exc_info=True)
        return Drawn(name, figure.title, figure.caption, error=cut(printable(f"{type(error).__name__}: {error}"), 300))
