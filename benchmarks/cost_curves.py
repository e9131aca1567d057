"""Time and memory against work: tokens, documents, prefix length, threads, and adapters of a batch.

    python -m benchmarks.cost_curves [--axis tokens batch prefix threads adapters] [--rounds 2]

A training step of Longformer-base's shapes (two layers, float32) with five methods and none, and a batch of 64 short
documents that have one to 64 adapters between them. Candidates take turns; medians of processor time, of the clock's
for threads. Memory is the peak of a step beyond what is held before it. Writes the results and the figure of the guide;
axes that the results hold already are not measured again. ``--draw`` draws alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.suite.machine import hardware, peak_of
from benchmarks.suite.methods import build, case, with_prefix
from benchmarks.suite.mixed import in_bank, new_model, saved_adapters, short_documents
from benchmarks.suite.models import NONE, SHAPES, documents, model, step
from foretoken.bank.bank import AdapterBank
from foretoken.files import write_json
from foretoken.report.figures.style import RC, WIDTH, grid, legend, marks, thousands, to_png

RESULTS = Path(__file__).parent / "results" / "cost_curves.json"
FIGURE = Path(__file__).parents[1] / "docs" / "cost-curves.png"
LAYERS, SHAPE = 2, SHAPES["base"]
METHODS = ("prefix-propagation", "prefix-tuning", "inducer-tuning", "aot-p-tuning", "lora")
CASES = [
    case(NONE, "none"),
    *(case(name, name=name, **({"num_virtual_tokens": 8} if "prefix" in name else {})) for name in METHODS),
]
AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "tokens": ("tokens of a document", (512, 1024, 2048, 4096, 8192, 16384)),
    "batch": ("documents of 512 tokens", (1, 2, 4, 8, 16)),
    "prefix": ("virtual tokens before 1,024", (4, 8, 16, 32, 64, 128)),
    "threads": ("threads, 2,048 tokens", (1, 2)),
    "adapters": ("adapters, 64 short documents", (1, 4, 16, 64)),
}
Measured = Iterator[tuple[str, int, float, float | None]]


def models(longest: int, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the candidates on a model for documents of so many tokens."""
    base = model("longformer", SHAPE, layers=LAYERS, max_length=longest + 200)
    with TemporaryDirectory() as folder:
        return {one["label"]: build(base, one, Path(folder) / one["label"]).train() for one in cases}


def timed(calls: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median seconds of each call, all in turn, after a warm-up."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = clock()
            call()
            if number:
                spent[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in spent.items()}


def steps(candidates: dict[str, Any], lengths: list[int], rounds: int, clock: Callable[[], float]) -> Measured:
    """Yield the time and the memory of each candidate's step."""
    batch = documents(SHAPE, lengths, "cpu")
    calls: dict[str, Callable[[], object]] = {name: partial(step, one, batch) for name, one in candidates.items()}
    seconds = timed(calls, rounds, clock)
    for name, call in calls.items():
        found = peak_of(call, "cpu")
        held = None if found["peak"] is None or found["before"] is None else found["peak"] - found["before"]
        yield name, 0, seconds[name], held


def measured(axis: str, rounds: int) -> Measured:
    """Yield method, place on the axis, seconds and bytes."""
    values = AXES[axis][1]
    if axis == "adapters":
        yield from adapters(values, rounds)
        return
    if axis == "prefix":
        for length in values:
            cases = [CASES[0], *with_prefix("prefix-propagation", length), *with_prefix("prefix-tuning", length)]
            for name, _, seconds, held in steps(models(1024, cases), [1024], rounds, time.process_time):
                yield name.partition(",")[0], length, seconds, held
        return
    candidates = models(max(values) if axis == "tokens" else 2048, CASES)
    for value in values:
        lengths = {"tokens": [value], "batch": [512] * value, "threads": [2048]}[axis]
        if axis == "threads":
            torch.set_num_threads(value)
        clock = time.perf_counter if axis == "threads" else time.process_time
        for name, _, seconds, held in steps(candidates, lengths, rounds, clock):
            yield name, value, seconds, held
    torch.set_num_threads(1)


def adapters(counts: tuple[int, ...], rounds: int) -> Measured:
    """Yield what a batch takes whose documents have so many adapters between them."""
    for method in ("prefix-propagation", "prefix-tuning", "lora"):
        size = max(counts)
        settings = {"family": "minilm", "method": method, "layers": 6, "shape": "base"}
        settings |= {"documents": size, "lengths": [32, 64]}
        with TemporaryDirectory() as folder:
            bank = AdapterBank(new_model(settings))
            for number, own in enumerate(saved_adapters(settings, Path(folder))):
                bank.add(f"a{number}", own)
        batch = short_documents(settings)
        calls: dict[str, Callable[[], object]] = {
            str(count): partial(in_bank, bank, batch, [f"a{number % count}" for number in range(size)])
            for count in counts
        }
        for count, seconds in timed(calls, rounds, time.process_time).items():
            yield method, int(count), seconds, None


def draw(found: dict[str, list[dict[str, Any]]]) -> bytes:
    """Return the figure: time by axis, and memory by tokens and by documents."""
    panels = [(axis, "seconds") for axis in AXES if axis in found]
    panels += [(axis, "bytes") for axis in ("tokens", "batch") if axis in found]
    look = marks([(name, name) for name in (NONE, *METHODS)])
    with mpl.rc_context(RC | {"figure.figsize": (WIDTH, WIDTH)}):
        figure, axes = grid(len(panels))
        for one, (axis, what) in zip(axes, panels, strict=True):
            for name in (NONE, *METHODS):
                points = [(row["at"], row[what]) for row in found[axis] if row["method"] == name and row[what]]
                if points:
                    xs, ys = zip(*points, strict=True)
                    values = [y / 1e9 for y in ys] if what == "bytes" else ys
                    one.plot(xs, values, label=name, markersize=3, linewidth=1, **look[name]._asdict())
            one.set_xscale("log", base=2)
            one.set_xticks(AXES[axis][1])
            one.xaxis.set_major_formatter(binary)
            if axis in ("tokens", "batch"):
                one.set_yscale("log")
                one.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
                one.yaxis.set_major_formatter(thousands)
                one.yaxis.set_minor_formatter(NullFormatter())
            else:
                one.set_ylim(bottom=0)
            one.set_xlabel(AXES[axis][0])
            one.set_ylabel("GB" if what == "bytes" else "seconds")
        legend(figure, axes)
        return to_png(figure)


def binary(value: float, _: Any = None) -> str:
    """Return a power of two as an axis shows it."""
    return f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"


def main() -> None:
    """Measure what the results lack, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--axis", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--draw", action="store_true", help="draw what the results hold")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    values: dict[str, Any] = {"hardware": hardware(), "layers": LAYERS, "axes": {}}
    if options.output.is_file():
        values = json.loads(options.output.read_text(encoding="utf-8"))
    for axis in [] if options.draw else options.axis:
        if axis not in values["axes"]:
            rows = list(measured(axis, options.rounds))
            values["axes"][axis] = [dict(zip(("method", "at", "seconds", "bytes"), row, strict=True)) for row in rows]
            write_json(options.output, values)
            print(axis, *values["axes"][axis], sep="\n  ", flush=True)
    options.figure.write_bytes(draw(values["axes"]))


if __name__ == "__main__":
    main()
