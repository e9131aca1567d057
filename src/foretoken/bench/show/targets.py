"""The targets of the speed design, and whether the results at hand reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from foretoken.bench.names import CHECKPOINTED, ENCODE, OURS, PIPELINE, TEXT_METHODS, THEIRS
from foretoken.bench.show.encoder import grown, of_limit
from foretoken.bench.show.lengths import totals
from foretoken.bench.show.numbers import (
    Result,
    Results,
    done,
    exponent,
    gigabytes,
    overhead,
    percent,
    ratio,
    seconds,
    times,
)
from foretoken.bench.show.section import table
from foretoken.report.render.table import Table

N, LONG, LAYERS = 4096, 16384, 12
T = TypeVar("T")
Runs = Mapping[str, Results]  # by benchmark
REACHED, MISSED, UNMEASURED = "reached", "missed", "not measured in this run"


@dataclass(frozen=True)
class Target:
    """One number to reach.

    Attributes:
        what: the number's meaning.
        bound: the target.
        measured: finds the number in the results; None where they do not have it.
        write: how both are written.
        at_least: whether more is better.
    """

    what: str
    bound: float
    measured: Callable[[Runs], float | None]
    write: Callable[[float], str]
    at_least: bool = False

    def row(self, runs: Runs) -> list[str]:
        """Return what, measured, target and the verdict."""
        value = self.measured(runs)
        wanted = f"{'>=' if self.at_least else '<='} {self.write(self.bound).lstrip('+')}"
        if value is None:
            return [self.what, "", wanted, UNMEASURED]
        is_reached = value >= self.bound if self.at_least else value <= self.bound
        return [self.what, self.write(value), wanted, REACHED if is_reached else MISSED]


def targets_table(runs: Runs) -> Table:
    """Return every target beside what was measured."""
    rows = [target.row(runs) for target in TARGETS]
    return table("Targets", ["what", "measured", "target", ""], rows)


def headline(runs: Runs, dtype: str, allocator: str) -> Result | None:
    """Return the main comparison of the encoder, if it was measured in full size."""
    wanted = {"what": "time", "shape": "base", "n": N, "layers": LAYERS, "batch": 1}
    return newest(done(runs.get("encoder", ()), **wanted, dtype=dtype, allocator=allocator))


def newest(results: Sequence[T]) -> T | None:
    """Return the last of several results, or numbers of them."""
    return results[-1] if results else None


def step_ratio(dtype: str, allocator: str) -> Callable[[Runs], float | None]:
    """Find how many of our steps fit into one of transformers'."""

    def find(runs: Runs) -> float | None:
        result = headline(runs, dtype, allocator)
        return None if result is None else ratio(result["timings"]["step"], OURS, THEIRS)

    return find


def share_of_limit(dtype: str) -> Callable[[Runs], float | None]:
    """Find the share of the machine's limit that our step reaches."""

    def find(runs: Runs) -> float | None:
        result = headline(runs, dtype, "tuned")
        return None if result is None else of_limit(result, "step", OURS)

    return find


def activation_share(runs: Runs) -> float | None:
    """Find our activations as a share of transformers'."""
    wanted = {"what": "activations", "shape": "base", "n": N}
    result = newest(done(runs.get("encoder", ()), **wanted, dtype="float32"))
    return None if result is None else result["bytes_per_layer"][OURS] / result["bytes_per_layer"][THEIRS]


def peak_at(dtype: str, n: int) -> Callable[[Runs], float | None]:
    """Find the most memory that our step with gradient checkpointing takes beyond the model."""

    def find(runs: Runs) -> float | None:
        wanted = {"what": "peak", "shape": "base", "n": n, "layers": LAYERS, "candidate": CHECKPOINTED, "dtype": dtype}
        result = newest(done(runs.get("encoder", ()), **wanted))
        return (
            None
            if result is None
            else grown(result["memory"], "cuda_" if result["settings"]["device"] == "cuda" else "")
        )

    return find


def gain(mode: str, *families: str, dtype: str = "float32") -> Callable[[Runs], float | None]:
    """Find how many times as fast as transformers the slowest of some families is; of all but BERT without names."""

    def find(runs: Runs) -> float | None:
        results = done(runs.get("families", ()), shape="base", dtype=dtype, allocator="tuned")
        others = {one["settings"]["family"] for one in results} - {"bert"}
        chosen = [one for one in results if one["settings"]["family"] in (families or others)]
        found = [ratio(one["timings"][mode], OURS, THEIRS) for one in chosen]
        return min((value for value in found if value is not None), default=None)

    return find


def padded_ratio(order: str) -> Callable[[Runs], float | None]:
    """Find the gain over padding, of one order of the documents."""

    def find(runs: Runs) -> float | None:
        wanted = {"shape": "base", "order": order, "longest": N, "dtype": "float32", "allocator": "tuned"}
        result = newest(done(runs.get("padding", ()), **wanted))
        return None if result is None else totals(result)[THEIRS] / totals(result)[OURS]

    return find


def distance(kind: str) -> Callable[[Runs], float | None]:
    """Find the largest difference from transformers in float32, over all sizes measured."""

    def find(runs: Runs) -> float | None:
        results = done(runs.get("encoder", ()), what="time", shape="base", dtype="float32")
        found = [kinds[kind] for result in results for kinds in result["differences"].values() if kind in kinds]
        return max(found, default=None)

    return find


def cost(family: str, n: int, label: str) -> Callable[[Runs], float | None]:
    """Find a method's overhead in the forward pass."""

    def find(runs: Runs) -> float | None:
        wanted = {"shape": "base", "family": family, "n": n, "dtype": "float32"}
        results = [result for name in ("methods", "aot") for result in done(runs.get(name, ()), **wanted)]
        found = [overhead(result["timings"]["forward"], label) for result in results]
        return next((value for value in reversed(found) if value is not None), None)

    return find


def step_beside(label: str, other: str) -> Callable[[Runs], float | None]:
    """Find what a method's step costs beside another one's on Longformer."""

    def find(runs: Runs) -> float | None:
        results = done(runs.get("methods", ()), shape="base", family="longformer", n=N, dtype="float32")
        found = [ratio(result["timings"]["step"], other, label) for result in results]
        return next((value for value in reversed(found) if value is not None), None)

    return find


def beside_one(method: str) -> Callable[[Runs], float | None]:
    """Find what a batch of 100 adapters takes, beside one adapter's, in processor time."""

    def find(runs: Runs) -> float | None:
        result = newest(done(runs.get("mixed", ()), family="minilm", method=method, shape="base"))
        spent = {} if result is None else result["processor_seconds"]
        return (
            spent["bank, 100 adapters"] / spent[result["beside"]] if result and "bank, 100 adapters" in spent else None
        )

    return find


def attaching(runs: Runs) -> float | None:
    """Find the processor seconds that attaching 100 adapters takes, of the method that takes longest."""
    found = [one for one in done(runs.get("mixed", ()), family="minilm", shape="base") if len(one["attached"]) == 100]
    return max((one["attached_processor_seconds"] for one in found), default=None)


def of_engine(find: Callable[[Result], float | None]) -> Callable[[Runs], float | None]:
    """Find a number of the serving benchmark, in the last run that has it."""
    return lambda runs: newest([value for one in done(runs.get("serve", ()), shape="base") if (value := find(one))])


def many_active(result: Result) -> float | None:
    """Return the throughput with 10,000 adapters beside one's, by the processor time of a batch."""
    timings = result.get("timings", {})
    one, many = (timings.get(name, {}).get("processor") for name in ("1", "10000"))
    return one / many if one and many else None


def cold_latency(result: Result) -> float | None:
    """Return the 99th percentile of what cold adapters take."""
    return result["latency"]["cold"]["p99"] if "latency" in result else None


def texts_beside(other: str) -> Callable[[Runs], float | None]:
    """Find how many times as many short texts foretoken predicts as another one: its fastest precision and method."""

    def find(runs: Runs) -> float | None:
        results = [newest(done(runs.get("predict", ()), shape="base", method=method)) for method in TEXT_METHODS]
        found = [
            ratio(result["timings"], name, other)
            for result in results
            if result is not None and other in result["timings"]
            for name in result["timings"]
            if name.startswith(OURS)
        ]
        return max((value for value in found if value is not None), default=None)

    return find


def int8_beside_float32(runs: Runs) -> float | None:
    """Find how many times as many short texts int8 predicts as float32."""
    result = newest(done(runs.get("predict", ()), shape="base", method=TEXT_METHODS[0]))
    return None if result is None else ratio(result["timings"], f"{OURS}, int8", f"{OURS}, fp32")


def overloaded(result: Result) -> float | None:
    """Return the 95th percentile of accepted requests at five times what is answered, beside that at once it."""
    waits = {share: found["latency"] for share, found in result.get("arrivals", {}).items()}
    return waits["5.0"]["p95"] / waits["1.0"]["p95"] if waits.get("5.0") and waits.get("1.0") else None


def whole_percent(value: float) -> str:
    """Return a share as ``80 %``."""
    return f"{100 * value:.0f} %"


STEP = f"step, {LAYERS} layers, n = {N}, beside transformers"
COST = f"forward pass, n = {N}, over no adapter"
PROPAGATION = "prefix-propagation, P = 8"
BESIDE = f"step, n = {N}, beside prefix-propagation's"
PEAK = f"peak memory of a step, gradient checkpointing, n = {LONG}, {LAYERS} layers"
REAL = "real lengths, random batches of 16"
OTHERS = "the slowest of the other packed families"
SHORT = "RoBERTa, n = 128, over no adapter"
TARGETS = (
    Target(f"{STEP}, default allocator, fp32", 3.4, step_ratio("float32", "default"), times, at_least=True),
    Target(f"{STEP}, default allocator, bf16", 3.0, step_ratio("bfloat16", "default"), times, at_least=True),
    Target(f"{STEP}, tuned allocator, fp32", 1.65, step_ratio("float32", "tuned"), times, at_least=True),
    Target(f"{STEP}, tuned allocator, bf16", 1.9, step_ratio("bfloat16", "tuned"), times, at_least=True),
    Target("step, of the GEMM limit, fp32", 0.8, share_of_limit("float32"), whole_percent, at_least=True),
    Target("step, of the GEMM limit, bf16", 0.6, share_of_limit("bfloat16"), whole_percent, at_least=True),
    Target("activations per layer, of transformers', fp32", 0.28, activation_share, lambda value: f"{value:.2f}"),
    Target("steps over real lengths, bucketed batches", 2.2, padded_ratio("bucketed"), times, at_least=True),
    Target("steps over real lengths, random batches", 7.0, padded_ratio("random"), times, at_least=True),
    Target(f"BERT, {REAL}, forward pass beside transformers", 2.5, gain("forward", "bert"), times, at_least=True),
    Target(f"BERT, {REAL}, LoRA's step beside transformers", 3.0, gain("step of LoRA", "bert"), times, at_least=True),
    Target(f"BERT in bf16, {REAL}, forward pass", 2.5, gain("forward", "bert", dtype="bfloat16"), times, at_least=True),
    Target(
        f"BERT in bf16, {REAL}, LoRA's step", 3.0, gain("step of LoRA", "bert", dtype="bfloat16"), times, at_least=True
    ),
    Target(f"{OTHERS}, forward pass beside transformers", 2.0, gain("forward"), times, at_least=True),
    Target(f"{OTHERS}, LoRA's step beside transformers", 2.0, gain("step of LoRA"), times, at_least=True),
    Target(f"{PEAK}, fp32", 3e9, peak_at("float32", LONG), gigabytes),
    Target(f"{PEAK}, bf16", 2e9, peak_at("bfloat16", LONG), gigabytes),
    Target("outputs from transformers', fp32", 1e-5, distance("outputs"), exponent),
    Target("gradients from transformers', fp32, relative", 1e-5, distance("gradients_relative"), exponent),
    Target(f"prefix-propagation, {COST}", 0.04, cost("longformer", N, PROPAGATION), percent),
    Target(f"prefix-tuning, {COST}", 0.02, cost("longformer", N, "prefix-tuning, P = 8"), percent),
    Target(f"AoT P-tuning, fused, {COST}", 0.01, cost("longformer", N, "aot-p-tuning, fused float16"), percent),
    Target(f"selective prefix tuning, {COST}", 0.05, cost("longformer", N, "selective-prefix-tuning, P = 8"), percent),
    Target(f"inducer-tuning, {COST}", 0.04, cost("longformer", N, "inducer-tuning"), percent),
    Target(f"kernel propagation, {COST}", 0.1, cost("longformer", N, "kernel-propagation"), percent),
    Target(f"decoupled prefix, {COST}", 0.1, cost("longformer", N, "decoupled-prefix"), percent),
    Target(f"LoRA, {BESIDE}", 1.3, step_beside("lora", PROPAGATION), times),
    Target(f"BitFit, {BESIDE}", 1.5, step_beside("bitfit", PROPAGATION), times),
    Target(f"P-tuning v2, P = 100, {SHORT}", 0.07, cost("roberta", 128, "prefix-tuning, P = 100"), percent),
    Target(f"AoT P-tuning, fused, {SHORT}", 0.016, cost("roberta", 128, "aot-p-tuning, fused float16"), percent),
    Target(
        "a batch of 100 prefix-tuning adapters, beside one's, processor time", 1.2, beside_one("prefix-tuning"), times
    ),
    Target("attaching 100 adapters from folders, processor time", 1.0, attaching, seconds),
    Target(
        "throughput of 10,000 adapters, of one's, processor time",
        0.95,
        of_engine(many_active),
        whole_percent,
        at_least=True,
    ),
    Target(
        "mixed requests from the same one at a time",
        1e-5,
        of_engine(lambda one: one.get("largest_difference")),
        exponent,
    ),
    Target("a cold adapter's answer, p99", 0.05, of_engine(cold_latency), seconds),
    Target(f"short texts, beside {ENCODE}", 2.0, texts_beside(ENCODE), times, at_least=True),
    Target(f"short texts, beside {PIPELINE}", 4.0, texts_beside(PIPELINE), times, at_least=True),
    Target("short texts in int8, beside fp32", 2.0, int8_beside_float32, times, at_least=True),
    Target("p95 of what is accepted at 5 times what is answered, beside at once it", 1.5, of_engine(overloaded), times),
)
