"""The frame of a drawing in SVG."""

from __future__ import annotations

from collections.abc import Iterable


def svg(title: str, width: int, height: float, style: str, lines: Iterable[str]) -> str:
    """Return a file that draws these lines."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{style}</style>", *lines, "</svg>", ""])
