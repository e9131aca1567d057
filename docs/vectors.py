"""The picture of the README: where each method puts its vectors. `python docs/vectors.py` writes docs/vectors.svg."""

from __future__ import annotations

from pathlib import Path

from svg import svg

FILE = Path(__file__).with_name("vectors.svg")
STYLE = """
  text { font: 13px sans-serif; fill: #222 } .name { font-weight: bold } .small { font-size: 11px; fill: #555 }
  .frozen { fill: #eef1f4; stroke: #8494a5 } .trained { fill: #e8590c; stroke: none }
  .flow { fill: none; stroke: #e8590c; stroke-width: 1.5 } .text { fill: #b8c4d0; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e6e6 } .small { fill: #aab } .frozen { fill: #262b31; stroke: #78889a }
    .trained { fill: #ff8c42 } .flow { stroke: #ff8c42 } .text { fill: #55626f } }
"""
LAYERS, BLOCKS = 3, 7  # of each panel: layers drawn, and tokens of the text
WIDTH, LEFT, TOP, GAP, HEIGHT = 232, 14, 64, 50, 30  # of a panel; of a layer's box and the way to the next one
PANELS = (
    ("prompt tuning", "before the first layer", (0,), False, False),
    ("prefix-tuning", "as keys and values of every layer", (), True, False),
    ("prefix-propagation", "before every layer, flowing on", (0, 1, 2), False, True),
)


def panel(number: int, name: str, where: str, entries: tuple[int, ...], inside: bool, flows: bool) -> list[str]:
    """Draw one method: its name, the frozen layers, the text's tokens below them, and the trained vectors."""
    x, bottom = LEFT + number * WIDTH, TOP + LAYERS * GAP
    lines = [f'<text class="name" x="{x}" y="22">{name}</text>', f'<text class="small" x="{x}" y="40">{where}</text>']
    for layer in range(LAYERS):
        y = bottom - (layer + 1) * GAP
        lines.append(f'<rect class="frozen" x="{x}" y="{y}" width="200" height="{HEIGHT}" rx="5"/>')
        lines.append(f'<text class="small" x="{x + 112}" y="{y + 19}">frozen layer {layer + 1}</text>')
        if inside:
            lines += tokens(x + 12, y + 9, 2, "trained")
        if layer in entries:
            lines += tokens(x + 12, y + HEIGHT + 4, 2, "trained")
        if flows and layer:
            lines.append(f'<path class="flow" d="M{x + 23} {y + GAP} V{y + HEIGHT + 18}"/>')
    return [*lines, *tokens(x + 56, bottom - GAP + HEIGHT + 4, BLOCKS, "text")]


def tokens(x: int, y: int, count: int, kind: str) -> list[str]:
    """Draw a row of vectors."""
    return [f'<rect class="{kind}" x="{x + 14 * i}" y="{y}" width="10" height="12" rx="2"/>' for i in range(count)]


def picture() -> str:
    """Return the whole picture."""
    height = TOP + LAYERS * GAP + 34
    body = [line for number, shown in enumerate(PANELS) for line in panel(number, *shown)]
    y = height - 12
    legend = [
        *tokens(LEFT, y - 10, 1, "trained"),
        f'<text class="small" x="{LEFT + 16}" y="{y}">trained vectors</text>',
        *tokens(LEFT + 130, y - 10, 1, "text"),
        f'<text class="small" x="{LEFT + 146}" y="{y}">the document\'s tokens</text>',
    ]
    title = "Where prompt tuning, prefix-tuning and prefix-propagation put their trained vectors"
    return svg(title, 3 * WIDTH, height, STYLE, [*body, *legend])


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
