"""What the report shows of each benchmark: tables and charts from the results alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from foretoken.bench.show.charts import Chart
from foretoken.bench.show.numbers import (
    Result,
    Results,
    done,
    exponent,
    megabytes,
    overhead,
    percent,
    ratio,
    seconds,
    times,
    turns,
)
from foretoken.report.render.table import Table, words

THEIRS, OURS, NONE = "transformers", "foretoken", "no adapter"
CHECKPOINTED = "foretoken, gradient checkpointing"
PIPELINE, ENCODE = "transformers' pipeline", "sentence-transformers' encode"
TEXT_METHODS = ("prefix-propagation", "decoupled-prefix")


class Section(NamedTuple):
    """The tables and charts of one benchmark."""

    tables: list[Table]
    charts: list[Chart]


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


GRID_NOTE = (
    "overhead: median over the rounds of the time beside that of no adapter in the same round. adapter: its tensors in "
    "memory (a fused table is a file). during a pass: how far the memory of the process, or of the GPU, rose."
)


def left_out(result: Result) -> str:
    """Return which candidates do not work here, and why."""
    return "".join(f" Not measured: {name}: {reason}." for name, reason in result["skipped"].items())


METHODS_NOTE = (
    "overhead: median over the rounds of the time beside that of no adapter in the same round. The step of no adapter "
    "goes back to the embeddings, as that of an adapter on the first layer does."
)


def padding(results: Results) -> Section:
    """Show time per real token."""
    rows, bars = [], {}
    for result in done(results):
        total = totals(result)
        order = result["settings"]["order"]
        for name in (THEIRS, OURS):
            per_token = total[name] / total["real"]
            bars[f"{name}, {order}, {result['dtype']}"] = 1e6 * per_token
            computed = total["padded"] if name == THEIRS else total["real"]
            rows.append(
                [
                    order,
                    result["dtype"],
                    result["allocator"],
                    str(result["settings"]["layers"]),
                    name,
                    seconds(total[name]),
                    f"{1000000.0 * per_token:.0f} us",
                    f"{computed / total['real']:.2f}",
                    times(total[THEIRS] / total[name]),
                    exponent(result["differences"][OURS]["outputs"]) if name == OURS else "",
                ]
            )
    header = ["batches", "type", "allocator", "layers", "candidate", "time", "per real token", "rows / real token"]
    note = (
        "Steps of prefix-propagation with a loss over all tokens. rows / real token: what the batches hold with their "
        "padding; foretoken adds the 8 rows of each document and no padding."
    )
    shown = table("Documents of real lengths", [*header, f"beside {THEIRS}", "outputs differ"], rows, note)
    chart = Chart("Training step over documents of real lengths", "bars", "microseconds per real token", "", bars=bars)
    return Section([shown], [chart])


def families(results: Results) -> Section:
    """Show what every family gains over padded passes."""
    rows, bars = [], {}
    for result in done(results):
        settings = result["settings"]
        for mode, timings in result["timings"].items():
            base, mine = timings
            gain = ratio(timings, mine, base) or 0.0
            bars[f"{settings['family']}, {result['dtype']}, {mode}"] = gain
            rows.append(
                [
                    settings["family"],
                    str(settings["layers"]),
                    f"{result['padded_per_real']:.2f}",
                    result["dtype"],
                    mode,
                    base,
                    seconds(timings[base]["median"]),
                    seconds(timings[mine]["median"]),
                    f"{turns(timings[base])}, {turns(timings[mine])}",
                    times(gain),
                    exponent(result["differences"][f"{mine}, {mode}"]["outputs"]),
                ]
            )
    header = ["family", "layers", "padded / real", "type", "pass", "beside", "its time", OURS, "clean", "gain"]
    note = (
        "One batch in random order, lognormal lengths. padded / real: tokens of the padded batch per real one. "
        "prefix-propagation is beside its own padded step; the forward pass and LoRA beside transformers' own layers."
    )
    shown = table("Families over real lengths", [*header, "outputs differ"], rows, note)
    return Section([shown], [Chart("Gain over padded passes", "bars", "times as fast", "", bars=bars)])


def exported(results: Results) -> Section:
    """Show the exported graph's time by length."""
    rows, series = [], dict[str, list[tuple[float, float]]]()
    for result in done(results):
        for length in result["lengths"]:
            timings, differences = length["timings"], length["differences"]
            for name, timing in timings.items():
                line = series.setdefault(f"{result['settings']['family']}, {name}", [])
                line.append((length["n"], timing["median"]))
                rows.append(
                    [
                        result["settings"]["family"],
                        str(result["settings"]["layers"]),
                        str(length["n"]),
                        name,
                        seconds(timing["median"]),
                        turns(timing),
                        said(ratio(timings, name, OURS), times),
                        said(timing.get("processor"), seconds),  # older results have none
                        said(differences.get(name), exponent),
                    ]
                )
    header = ["family", "layers", "n", "candidate", "time", "clean", f"beside {OURS}", "processor", "logits differ"]
    note = (
        "One document, prefix-propagation with 8 rows. beside: above 1, the candidate is faster. processor: seconds "
        "of all threads, which other work on the machine disturbs less."
    )
    chart = Chart("An exported encoder in onnxruntime", "lines", "tokens", "seconds", series)
    return Section([table("An exported encoder in onnxruntime", header, rows, note)], [chart])


def predicted(results: Results) -> Section:
    """Show texts per second of each candidate, and what our seconds go to."""
    rows, parts, bars = [], [], {}
    for result in done(results):
        timings, count, method = result["timings"], result["texts"], result["settings"]["method"]
        for name, timing in timings.items():
            speed = count / timing["median"]
            bars[f"{name}, {method}" if name.startswith(OURS) else name] = speed
            beside = [said(ratio(timings, name, other), times) for other in (PIPELINE, ENCODE)]
            rows.append([method, name, seconds(timing["median"]), turns(timing), f"{speed:,.0f}", *beside])
        for name, spent in result["seconds_of"].items():
            total = sum(spent.values())
            parts.append([method, name, *(f"{100 * value / total:.1f} %" for value in spent.values())])
    note = "Texts of 12 words in the median; MiniLM. foretoken reads a file and writes one, and has an adapter."
    header = ["adapter", "candidate", "time", "clean", "texts per second", f"beside {PIPELINE}", f"beside {ENCODE}"]
    spent_header = ["adapter", "precision", "reading", "tokenising", "model", "writing"]
    shown_tables = [
        table("Short texts", header, rows, note),
        table("Where foretoken's time goes", spent_header, parts),
    ]
    return Section(shown_tables, [Chart("Short texts", "bars", "texts per second", "", bars=bars)])


def mixed(results: Results) -> Section:
    """Show what adapters in a batch cost, and attaching them."""
    rows, attached, bars = [], [], {}
    for result in done(results):
        family, method = result["settings"]["family"], result["settings"]["method"]
        timings, beside = result["timings"], result["beside"]
        for name, timing in timings.items():
            bars[f"{family}, {method}: {name}"] = timing["median"]
            spent = result["processor_seconds"]
            shown = [seconds(timing["median"]), turns(timing), said(ratio(timings, beside, name), times)]
            rows.append([family, method, name, *shown, seconds(spent[name]), times(spent[name] / spent[beside])])
        total, slowest = sum(result["attached"]), max(result["attached"])
        first = result["attached"][0]
        spent = said(result.get("attached_processor_seconds"), seconds)
        attached.append([family, method, str(len(result["attached"])), *map(seconds, (total, first, slowest)), spent])
    note = (
        "beside one: beside the bank with one adapter, or with one of each method in the blend. Processor time is that "
        "of the process, which others on the machine change less. "
        "peft computes all documents with one adapter, in a batch or document by document."
    )
    header = ["model", "method", "candidate", "time", "clean", "beside one", "processor time", "beside one"]
    second = ["model", "method", "adapters", "all attached", "the first", "the slowest", "all, processor time"]
    shown_tables = [table("Adapters in a batch", header, rows, note), table("Attaching from folders", second, attached)]
    return Section(shown_tables, [Chart("A batch of documents", "bars", "seconds", "", bars=bars)])


def serve(results: Results) -> Section:
    """Show the engine's throughput by number of adapters, latencies of cold ones, and equality."""
    active, latencies, equal, arrivals, bars = [], [], [], [], {}
    for result in done(results):
        timings = result.get("timings", {})
        arrivals += arrived(result)
        first = next(iter(timings), "")
        for name, timing in timings.items():
            held = said(result["resident_bytes"], megabytes)
            shown = [seconds(timing["median"]), turns(timing), said(ratio(timings, name, first), times), held]
            active.append([name, *shown, seconds(result["adding_seconds"])])
        for name, found in result.get("latency", {}).items():
            latencies.append([name, *(seconds(found[key]) for key in ("p50", "p95", "p99", "max"))])
            bars[f"{name}, p99"] = found["p99"]
        if "largest_difference" in result:
            spent = [seconds(value) for value in result["seconds"].values()]
            equal.append([str(result["settings"]["requests"]), exponent(result["largest_difference"]), *spent])
    note = "Batches of documents with random adapters of so many; all adapters are in memory, as float16."
    header = ["active adapters", "a batch", "clean", "throughput beside one", "memory of all", "adding all"]
    shown_tables = [
        table("Adapters in memory", header, active, note),
        table("Latency of the engine", ["asked", "p50", "p95", "p99", "longest"], latencies),
        table("Mixed and alone", ["requests", "largest difference", "together", "one at a time"], equal),
        table("Arrivals by chance", ["of what is answered", "a second", "answered", "refused", "p50", "p95"], arrivals),
    ]
    return Section(shown_tables, [Chart("Latency of the engine", "bars", "seconds", "", bars=bars)])


def arrived(result: Result) -> list[list[str]]:
    """Return a row for each rate of arrivals."""
    rows = []
    for share, found in result.get("arrivals", {}).items():
        latency = found["latency"] or {}
        waits = [said(latency.get(key), seconds) for key in ("p50", "p95")]
        counts = [f"{found['rate']:.1f}", str(found["answered"]), str(found["refused"] + found["late"])]
        rows.append([times(float(share)), *counts, *waits])
    return rows


def totals(result: Result) -> dict[str, float]:
    """Return the sums over the batches: seconds of either side, real and padded tokens."""
    batches = result["batches"]
    found: dict[str, float] = {key: sum(batch[key] for batch in batches) for key in ("real", "padded")}
    return found | {name: sum(batch["timings"][name]["median"] for batch in batches) for name in (THEIRS, OURS)}


def lines(results: Results, mode: str, label: Callable[[Result, str], str]) -> dict[str, list[tuple[float, float]]]:
    """Return medians by length, one line per label."""
    found: dict[str, dict[int, float]] = {}
    for result in results:
        for name, timing in result["timings"][mode].items():
            found.setdefault(label(result, name), {})[result["settings"]["n"]] = timing["median"]
    return {name: sorted(points.items()) for name, points in found.items()}


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    """Return a table of texts."""
    return Table(title, tuple(header), tuple(tuple(words(*row)) for row in rows), note, names=len(header))


def said(value: float | None, write: Callable[[float], str]) -> str:
    """Return a number as text; nothing for none."""
    return "" if value is None else write(value)


def capitalised(text: str) -> str:
    """Return a title with a capital."""
    return text[:1].upper() + text[1:]


SECTIONS: dict[str, Callable[[Results], Section]] = {
    "attention": attention,
    "encoder": encoder,
    "methods": methods,
    "padding": padding,
    "families": families,
    "predict": predicted,
    "mixed": mixed,
    "serve": serve,
    "aot": ahead_of_time,
    "export": exported,
}
