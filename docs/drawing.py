"""The drawing of docs/architecture.md: the packages of the code and who imports whom, read from the imports."""

from __future__ import annotations

from collections import defaultdict
from graphlib import TopologicalSorter
from html import escape

import grimp
from svg import svg

PACKAGES = ("foretoken", "foretoken_cli")
GROUND = "ground"  # the modules that lie beside the packages: options, files, errors ...
WIDTH, BOX, GAP, LINE = 960, 200, 26, 15  # of the drawing, of a box, between boxes, of a line of text
STYLE = """
  text { font: 12px sans-serif; fill: #222 } .name { font-weight: bold; font-size: 14px }
  rect { fill: #f4f6f8; stroke: #557; rx: 6 } path { fill: none; stroke: #557; stroke-opacity: 0.55 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } rect { fill: #23272b; stroke: #9ab } path { stroke: #9ab } }
"""


def package_of(module: str) -> str | None:
    """Return the box that a module is drawn in; None for `foretoken` itself, which only names the others."""
    parts = module.split(".")
    if parts[0] == "foretoken_cli":
        return "foretoken_cli"
    if len(parts) == 1 or parts[1] == "__main__":
        return None
    return parts[1]


def read_packages() -> tuple[dict[str, list[str]], set[tuple[str, str]]]:
    """Return what each box holds, and which box imports which."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    whole = {package_of(module) for module in graph.modules if module.count(".") == 2}
    contents: dict[str, set[str]] = defaultdict(set)
    imports: set[tuple[str, str]] = set()

    def box(module: str) -> str | None:
        name = package_of(module)
        return name if name is None or name in whole or name == "foretoken_cli" else GROUND

    for module in graph.modules:
        here = box(module)
        if here is None:
            continue
        inside = module.split(".")[1 if here in (GROUND, "foretoken_cli") else 2 :]
        contents[here].update(inside[:1])
        for other in graph.find_modules_directly_imported_by(module):
            if (there := box(other)) not in (None, here):
                imports.add((here, str(there)))
    return {name: sorted(parts) for name, parts in contents.items()}, imports


def levels(imports: set[tuple[str, str]]) -> dict[str, int]:
    """Return each box's height: one more than the highest box that it imports.

    Raises:
        graphlib.CycleError: the packages import each other in a circle.
    """
    below: dict[str, set[str]] = defaultdict(set)
    for here, there in imports:
        below[here].add(there)
        below[there] |= set()
    found: dict[str, int] = {}
    for name in TopologicalSorter(below).static_order():
        found[name] = max((found[other] + 1 for other in below[name]), default=0)
    return found


def direct(imports: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the arrows that no way over another box stands for already."""
    below: dict[str, set[str]] = defaultdict(set)
    for here, there in imports:
        below[here].add(there)

    def reached(name: str) -> set[str]:
        return {name}.union(*(reached(other) for other in below[name]))

    return sorted(
        (here, there)
        for here, there in imports
        if not any(there in reached(other) for other in below[here] if other != there)
    )


def wrapped(parts: list[str], width: int = 30) -> list[str]:
    """Return names as lines of at most so many characters."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {part}".strip()
    return lines


def drawing() -> str:
    """Return the drawing as SVG."""
    contents, imports = read_packages()
    height_of = levels(imports)
    rows = [sorted(name for name in contents if height_of[name] == level) for level in sorted(set(height_of.values()))]
    places: dict[str, tuple[float, float, float]] = {}  # left, top, height
    texts: list[str] = []
    top = GAP / 2
    for row in reversed(rows):
        lines = {name: wrapped([part for part in contents[name] if not part.startswith("_")]) for name in row}
        tall = max(len(found) for found in lines.values()) * LINE + 34
        left = (WIDTH - len(row) * BOX - (len(row) - 1) * GAP) / 2
        for name in row:
            places[name] = (left, top, tall)
            texts.append(f'<rect x="{left:.0f}" y="{top:.0f}" width="{BOX}" height="{tall:.0f}"/>')
            texts.append(f'<text class="name" x="{left + 10:.0f}" y="{top + 20:.0f}">{escape(name)}</text>')
            texts += [
                f'<text x="{left + 10:.0f}" y="{top + 38 + LINE * number:.0f}">{escape(line)}</text>'
                for number, line in enumerate(lines[name])
            ]
            left += BOX + GAP
        top += tall + 2 * GAP
    arrows = [arrow(places[here], places[there]) for here, there in direct(imports)]
    title = "The packages of foretoken; every arrow is imports, and all of them point down"
    mark = '<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0 0 8 4 0 8"/>'
    return svg(title, WIDTH, top, STYLE, [f"<defs>{mark}</marker></defs>", *arrows, *texts])


def arrow(start: tuple[float, float, float], end: tuple[float, float, float]) -> str:
    """Return one arrow, from the foot of a box to the head of another."""
    x, y, z, w = start[0] + BOX / 2, start[1] + start[2], end[0] + BOX / 2, end[1]
    bend = f"M{x:.0f} {y:.0f} C{x:.0f} {y + 2 * GAP:.0f} {z:.0f} {w - 2 * GAP:.0f} {z:.0f} {w:.0f}"
    return f'<path d="{bend}" marker-end="url(#tip)"/>'
