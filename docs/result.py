"""The result figure of the README: ROC AUC on SST-2 by method. `python docs/result.py` writes docs/result.svg."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))
from research.archive import read_records
from svg import svg

FILE = Path(__file__).with_name("result.svg")
STYLE = """
  text { font: 13px sans-serif; fill: #222 } .small { font-size: 11px; fill: #555 } .axis { stroke: #c3ccd6 }
  .own { fill: #e8590c; stroke: #e8590c } .other { fill: #5c7185; stroke: #5c7185 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e6e6 } .small { fill: #aab } .axis { stroke: #45505c }
    .own { fill: #ff8c42; stroke: #ff8c42 } .other { fill: #9db0c3; stroke: #9db0c3 } }
"""
OTHERS = ("lora", "full", "bitfit", "head-only", "tf-idf")  # not foretoken's own
LEFT, RIGHT, TOP, ROW, WIDTH = 190, 96, 34, 22, 700
LOWEST, HIGHEST, STEP = 0.83, 0.93, 0.01


def scores(runs: list[dict[str, Any]]) -> dict[str, tuple[list[float], float | None]]:
    """Return each method's ROC AUC on the test of SST-2, a number a run, and the percentage that is trained."""
    found: dict[str, tuple[list[float], float | None]] = {}
    for run in runs:
        if run["recipe"]["data"]["task"] == "sst2":
            share = (run.get("parameters") or {}).get("percent")
            found.setdefault(run["recipe"]["method"]["name"], ([], share))[0].append(run["test"]["roc_auc"])
    return dict(sorted(found.items(), key=lambda one: -statistics.mean(one[1][0])))


def place(score: float) -> float:
    """Return where a score is from left to right."""
    return LEFT + (score - LOWEST) / (HIGHEST - LOWEST) * (WIDTH - LEFT - RIGHT)


def row(number: int, name: str, values: list[float], share: float | None) -> list[str]:
    """Draw a method: its name, its mean, the range of its runs, and how much of the model is trained."""
    y, kind = TOP + number * ROW, "other" if name in OTHERS else "own"
    mean = statistics.mean(values)
    trained = "no model" if share is None else f"{share:.2f} %" if share < 100 else "100 %"
    return [
        f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{name}</text>',
        f'<line class="{kind}" x1="{place(min(values)):.1f}" x2="{place(max(values)):.1f}" y1="{y}" y2="{y}"/>',
        f'<circle class="{kind}" cx="{place(mean):.1f}" cy="{y}" r="4.5"/>',
        f'<text class="small" x="{WIDTH - RIGHT + 16}" y="{y + 4}">{trained}</text>',
    ]


def picture() -> str:
    """Return the whole picture."""
    found = scores(read_records("study")["runs"])
    bottom = TOP + len(found) * ROW
    lines = [f'<text class="small" x="{WIDTH - RIGHT + 16}" y="16">trained</text>']
    for step in range(round((HIGHEST - LOWEST) / STEP) + 1):
        x = place(LOWEST + step * STEP)
        lines.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 12}" y2="{bottom - 10}"/>')
        label = f"{LOWEST + step * STEP:.2f}"
        lines.append(f'<text class="small" x="{x:.1f}" y="{bottom + 6}" text-anchor="middle">{label}</text>')
    for number, (name, (values, share)) in enumerate(found.items()):
        lines += row(number, name, values, share)
    lines.append(
        f'<text class="small" x="{LEFT}" y="{bottom + 26}">ROC AUC on SST-2: mean and range of the runs</text>'
    )
    return svg("ROC AUC of MiniLM on SST-2 with every method", WIDTH, bottom + 36, STYLE, lines)


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
