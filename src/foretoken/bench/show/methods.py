"""What the report shows of each method's cost, and of ahead-of-time P-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretoken.bench.names import NONE
from foretoken.bench.show.charts import Chart
from foretoken.bench.show.encoder import grown
from foretoken.bench.show.numbers import Result, Results, done, megabytes, overhead, percent, seconds, turns
from foretoken.bench.show.section import Section, capitalised, said, table

METHODS_NOTE = (
    "overhead: median over the rounds of the time beside that of no adapter in the same round. The step of no adapter "
    "goes back to the embeddings, as that of an adapter on the first layer does."
)


GRID_NOTE = (
    "overhead: median over the rounds of the time beside that of no adapter in the same round. adapter: its tensors in "
    "memory (a fused table is a file). during a pass: how far the memory of the process, or of the GPU, rose."
)


def methods(results: Results) -> Section:
    """Show what each method costs beside no adapter."""
    tables, charts = [], []
    for result in done(results):
        forward, step = result["timings"]["forward"], result["timings"]["step"]
        rows = [
            [name, seconds(timing["median"]), turns(timing), said(overhead(forward, name), percent)]
            + ([seconds(step[name]["median"]), said(overhead(step, name), percent)] if name in step else ["", ""])
            for name, timing in forward.items()
        ]
        header = ["method", "forward", "clean", "overhead", "step", "overhead"]
        tables.append(table(capitalised(result["title"]), header, rows, METHODS_NOTE + left_out(result)))
        bars = {name: 100 * (overhead(forward, name) or 0) for name in forward if name != NONE}
        charts.append(Chart(capitalised(result["title"]), "bars", "forward pass, % over no adapter", "", bars=bars))
    return Section(tables, charts)


def ahead_of_time(results: Results) -> Section:
    """Show what `methods` shows, or where a grid was measured, time and memory against prefix length and rank."""
    grid = done(results, what="grid")
    if not grid:
        return methods(results)
    tables, charts = [], []
    for result in grid:
        timings, memory = result["timings"]["forward"], result["memory"]
        rows = [
            [
                *(name, seconds(timing["median"]), turns(timing), said(overhead(timings, name), percent)),
                *(megabytes(memory[name]["adapter"]), said(working_memory(memory[name]), megabytes)),
            ]
            for name, timing in timings.items()
        ]
        header = ["candidate", "forward", "clean", "overhead", "adapter", "during a pass"]
        title = capitalised(result["title"])
        tables.append(table(title, header, rows, GRID_NOTE + left_out(result)))
        for kind, axis in (("p", "prefix length p"), ("r", "rank r")):
            # not the medians of seconds: candidates are measured in groups, between which the machine's pace changes
            by_time = {name: 1 + more for name in timings if (more := overhead(timings, name)) is not None}
            by_memory = {name: held for name in timings if (held := beyond_the_model(memory[name]))}
            for values, what in (
                (by_time, "forward pass, beside no adapter"),
                (by_memory, "MB beyond the frozen model"),
            ):
                charts.append(Chart(title, "lines", axis, what, against(values, kind)))
    return Section(tables, charts)


def working_memory(memory: Mapping[str, Any]) -> float | None:
    """Return how far memory rose during a pass: the GPU's where there is one."""
    on_gpu = grown(memory, "cuda_")
    return grown(memory, "") if on_gpu is None else on_gpu


def beyond_the_model(memory: Mapping[str, Any]) -> float | None:
    """Return the MB of the adapter's own tensors and of what a pass needs; None where that is not known."""
    working = working_memory(memory)
    return None if working is None else (memory["adapter"] + working) / 1e6


def against(values: Mapping[str, float], kind: str) -> dict[str, list[tuple[float, float]]]:
    """Return a line for each method over its ``kind`` (p or r), and flat ones for the candidates that have neither.

    >>> against({"no adapter": 1.0, "v1, p = 5": 2.0, "v1, p = 10": 3.0, "fc, r = 8": 4.0}, "p")
    {'no adapter': [(5, 1.0), (10, 1.0)], 'v1': [(5, 2.0), (10, 3.0)]}
    """
    parts = {name: name.partition(f", {kind} = ") for name in values}
    places = sorted({int(place) for _, mark, place in parts.values() if mark})
    found: dict[str, list[tuple[float, float]]] = {}
    for name, (label, mark, place) in parts.items():
        if mark:
            found.setdefault(label, []).append((int(place), values[name]))
        elif " = " not in name:
            found[name] = [(each, values[name]) for each in places]
    return found if places else {}


def left_out(result: Result) -> str:
    """Return which candidates do not work here, and why."""
    return "".join(f" Not measured: {name}: {reason}." for name, reason in result["skipped"].items())
