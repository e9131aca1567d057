"""What the report shows of many adapters in a batch and of the server's engine."""

from __future__ import annotations

from foretoken.bench.show.charts import Chart
from foretoken.bench.show.numbers import Result, Results, done, exponent, megabytes, ratio, seconds, times, turns
from foretoken.bench.show.section import Section, said, table


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
