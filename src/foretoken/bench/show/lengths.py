"""What the report shows of documents of real lengths and of texts from a file."""

from __future__ import annotations

from foretoken.bench.names import ENCODE, OURS, PIPELINE, THEIRS
from foretoken.bench.show.charts import Chart
from foretoken.bench.show.numbers import Result, Results, done, exponent, ratio, seconds, times, turns
from foretoken.bench.show.section import Section, said, table


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


def totals(result: Result) -> dict[str, float]:
    """Return the sums over the batches: seconds of either side, real and padded tokens."""
    batches = result["batches"]
    found: dict[str, float] = {key: sum(batch[key] for batch in batches) for key in ("real", "padded")}
    return found | {name: sum(batch["timings"][name]["median"] for batch in batches) for name in (THEIRS, OURS)}


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
