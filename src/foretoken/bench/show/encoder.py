"""What the report shows of attention and of the encoder: times, activations and peaks of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretoken.bench.names import OURS, THEIRS
from foretoken.bench.show.charts import Chart
from foretoken.bench.show.numbers import Result, Results, done, exponent, megabytes, ratio, seconds, times, turns
from foretoken.bench.show.section import Section, lines, said, table
from foretoken.report.render.table import Table


def attention(results: Results) -> Section:
    """Show each engine's time by length."""
    rows = []
    for result in done(results):
        for mode, timings in result["timings"].items():
            for name, timing in timings.items():
                apart = result["differences"].get(name, {}).get("outputs" if mode == "forward" else "gradients")
                rows.append(
                    [
                        str(result["settings"]["n"]),
                        result["dtype"],
                        result["allocator"],
                        mode,
                        name,
                        seconds(timing["median"]),
                        turns(timing),
                        said(ratio(timings, name, THEIRS), times),
                        said(apart, exponent),
                    ]
                )
    header = ["n", "type", "allocator", "pass", "engine", "time", "clean", f"beside {THEIRS}", "from the reference"]
    note = (
        "One document, 12 heads, window 512, one global key. The last column: largest difference of outputs, or of "
        "gradients, from dense float32 attention under the mask that defines the window."
    )
    chart = Chart("Window + global attention, forward and backward", "lines", "tokens", "seconds", lines(
        done(results), "forward and backward", lambda result, name: f"{name}, {result['dtype']}"
    ))  # fmt: skip
    return Section([table("Time by engine and length", header, rows, note)], [chart])


def encoder(results: Results) -> Section:
    """Show time, activations and peak memory."""
    measured = done(results, what="time")
    chart = Chart("Training step of prefix-propagation, batch 1", "lines", "tokens", "seconds", lines(
        [r for r in measured if r["settings"]["batch"] == 1 and r["allocator"] == "tuned" and is_deepest(r, measured)],
        "step",
        lambda result, name: f"{name}, {result['dtype']}",
    ))  # fmt: skip
    return Section([encoder_times(measured), activations(results), peaks(results)], [chart])


def encoder_times(results: Results) -> Table:
    """Return one row per size, type, allocator, pass and candidate."""
    rows = []
    for result in results:
        settings = result["settings"]
        for mode, timings in result["timings"].items():
            for name, timing in timings.items():
                apart = result["differences"].get(f"{name}, {mode}", {})
                rows.append(
                    [str(settings[key]) for key in ("n", "batch", "layers")]
                    + [result["dtype"], result["allocator"], mode, name, seconds(timing["median"]), turns(timing)]
                    + [said(ratio(timings, name, THEIRS), times), f"{100 * of_limit(result, mode, name):.0f} %"]
                    + [said(apart.get("outputs"), exponent), said(apart.get("gradients_relative"), exponent)]
                )
    header = [
        *("n", "batch", "layers", "type", "allocator", "pass", "candidate", "time", "clean"),
        *(f"beside {THEIRS}", "of the limit", "outputs differ", "gradients differ"),
    ]
    note = (
        "forward: the plain model. step: prefix-propagation with 8 rows, forward, loss at [CLS], backward. n counts "
        "the rows. clean: samples during which other processes took less than 8 % of the machine. of the limit: what "
        "the result needs in operations, over time, over the fastest matrix product of the same process. outputs: "
        "largest difference of the logits; gradients: the same as a share of the largest gradient."
    )
    return table("Time", header, rows, note)


def of_limit(result: Result, mode: str, name: str) -> float:
    """Return the share of the machine's limit that a candidate reaches with the operations that are needed."""
    rate = result["work"][mode]["needed"] / result["timings"][mode][name]["median"]
    return rate / result["limit"]["flops_per_second"]


def is_deepest(result: Result, results: Results) -> bool:
    """Tell whether a result has the layers of the main run."""
    return result["settings"]["layers"] == max(other["settings"]["layers"] for other in results)


def activations(results: Results) -> Table:
    """Return what one layer keeps for the backward pass."""
    rows = []
    for result in done(results, what="activations"):
        kept = result["bytes_per_layer"]
        rows.append(
            [
                str(result["settings"]["n"]),
                result["dtype"],
                megabytes(kept[THEIRS]),
                megabytes(kept[OURS]),
                f"{kept[OURS] / kept[THEIRS]:.2f}",
            ]
        )
    note = (
        "What the graph of a step holds, each storage once, without weights: four layers less two layers, halved. It "
        "leaves out what the first and the last layer save."
    )
    return table("Activations per layer", ["n", "type", THEIRS, OURS, "ratio"], rows, note)


def peaks(results: Results) -> Table:
    """Return the most that a fresh process holds beyond the model."""
    rows = []
    for result in done(results, what="peak"):
        settings, memory = result["settings"], result["memory"]
        rows.append(
            [
                str(settings["n"]),
                str(settings["layers"]),
                result["dtype"],
                settings["candidate"],
                said(grown(memory, ""), megabytes),
                said(grown(memory, "cuda_"), megabytes),
            ]
        )
    header = ["n", "layers", "type", "candidate", "process", "GPU"]
    return table("Peak memory of a step, in a fresh process, beyond what it held before", header, rows)


def grown(memory: Mapping[str, Any], prefix: str) -> float | None:
    """Return how far memory rose during a call."""
    before, peak = memory[f"{prefix}before"], memory[f"{prefix}peak"]
    return None if before is None or peak is None else max(0, peak - before)
