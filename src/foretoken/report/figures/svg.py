"""A figure as SVG to put into a page, or as PNG.

In the SVG text stays text, the background is transparent, and everything that is not a mark of data, which is all text
and all axes, has ``currentColor``: the page's own colour of text, light or dark. Put it into the HTML as it is; a rule
``svg { max-width: 100%; height: auto }`` lets it shrink. Several fit into one page: their ids begin with ``name``.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING

from foretoken.report.figures.style import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG = '<svg role="img"'  # how a file of ours begins
_REFERENCES = re.compile(r'(\bid="|\bhref="#|url\(#)')
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def to_svg(figure: Figure, name: str = "figure", *, title: str = "") -> str:
    """Return the `<svg>` element of a figure.

    Args:
        figure: what to write.
        name: what its ids begin with, so that they are unique in a page.
        title: what it shows, for readers who cannot see it.
    """
    import matplotlib as mpl

    stream = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = _METADATA.sub("", text[text.index("<svg") :])
    text = _REFERENCES.sub(lambda match: f"{match[1]}{name}-", text.replace(INK, "currentColor"))
    return text.replace("<svg ", f'{SVG} aria-label="{escape(title)}" ', 1).strip() + "\n"


def to_png(figure: Figure, *, dpi: int = 160) -> bytes:
    """Return a figure as PNG, on white."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi, facecolor="white")
    return stream.getvalue()
