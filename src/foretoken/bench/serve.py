"""`serve`: the engine behind the server: many adapters in memory, mixed requests beside single ones, cold adapters.

HTTP and other servers are measured by ``benchmarks/serving/compare.py``, which asks them all the same.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import get_peft_model, get_peft_model_state_dict
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from foretoken.bench.candidates import failure
from foretoken.bench.measure import Effort, compare
from foretoken.bench.mixed import BLEND, METHODS, in_bank, kinds_of, new_model, saved_adapters
from foretoken.bench.models import SHAPES
from foretoken.bench.run.plan import Options, Part
from foretoken.inference.shared_base import SharedBase
from foretoken.memory import resident_bytes
from foretoken.methods import make_config
from foretoken.serving.bank import make_bank
from foretoken.serving.engine import Engine, Limits, Request
from foretoken.serving.errors import BusyError
from foretoken.serving.store import Store
from foretoken.serving.tasks import Classify, Document, Prediction
from foretoken.tuner.bank.bank import AdapterBank

ADAPTERS, EQUAL, COLD = "adapters in memory", "equal to one at a time", "cold adapters"
OVERLOAD = "overload"
AT_ONCE = 1024  # requests that wait at a time
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def plan(options: Options) -> list[Part]:
    """Return one part per question."""
    numbers: dict[str, dict[str, Any]] = {
        ADAPTERS: {
            "active": [1, 4, 8] if options.quick else [1, 1000, 10_000],
            "documents": 8 if options.quick else 64,
        },
        EQUAL: {
            "requests": options.requests or (32 if options.quick else 1000),
            "documents": 10 if options.quick else 100,
        },
        COLD: {"asked": 8 if options.quick else 200, "documents": 8 if options.quick else 64},
        OVERLOAD: {
            "arriving_seconds": 1 if options.quick else 20,
            "documents": 8 if options.quick else 64,
            "shares": [0.7, 1.0, 5.0],
        },
    }
    return [
        Part(
            "serve",
            what,
            settings=options.settings(
                what=what,
                family="minilm",
                method="prefix-propagation" if what != EQUAL else BLEND,
                layers=options.layers or (2 if options.quick else 6),
                lengths=[8, options.size(512) if options.shape == "base" else 64],
                effort=options.effort(rounds=5, seconds=60),
                **own,
            ),
        )
        for what, own in numbers.items()
    ]


def measure(part: Part, notify: Callable[[str], object]) -> dict[str, Any]:
    """Measure what the part asks."""
    runs = {ADAPTERS: adapters_in_memory, EQUAL: equal_to_alone, COLD: cold_adapters, OVERLOAD: overload}
    run = runs[part.settings["what"]]
    return run(part.settings, notify)


def lengths(count: int, settings: Mapping[str, Any]) -> list[int]:
    """Return log-normal numbers of words: a median of 55, and between 8 and 500."""
    chance, (least, most) = random.Random(0), settings["lengths"]
    return [int(min(most - 12, max(least, chance.lognormvariate(4, 1)))) for _ in range(count)]


def texts(count: int, settings: Mapping[str, Any]) -> list[str]:
    """Return documents of these lengths; every word is one token."""
    chance, words = random.Random(1), SHAPES[settings["shape"]].vocabulary // 2
    return [" ".join(f"w{chance.randrange(words)}" for _ in range(length)) for length in lengths(count, settings)]


def adapters_in_memory(settings: Mapping[str, Any], notify: Callable[[str], object]) -> dict[str, Any]:
    """Fill a bank with adapters in float16, and time batches of random ones of them."""
    method, own = METHODS[settings["method"]]
    model = get_peft_model(new_model(settings), make_config(method, task_type="SEQ_CLS", **own))
    config, state = model.peft_config["default"], get_peft_model_state_dict(model)
    bank = AdapterBank(new_model(settings), dtype=torch.float16)
    before, start = resident_bytes(), time.perf_counter()
    for number in range(max(settings["active"])):
        for tensor in state.values():
            tensor.detach().normal_(0, 0.02)
        bank.add(f"a{number}", config, state)
        if number % 100 == 0:
            notify(f"{number:,} adapters")
    seconds, after = time.perf_counter() - start, resident_bytes()
    counts = torch.tensor(lengths(settings["documents"], settings))
    mask = (torch.arange(int(counts.max())) < counts[:, None]).long()
    batch = {
        "input_ids": torch.randint(5, SHAPES[settings["shape"]].vocabulary // 2, mask.shape) * mask,
        "attention_mask": mask,
    }
    chance = random.Random(0)
    candidates = {
        str(active): partial(
            in_bank, bank, batch, [f"a{chance.randrange(active)}" for _ in range(settings["documents"])]
        )
        for active in settings["active"]
    }
    timings = compare(candidates, effort=Effort(**settings["effort"]), notify=notify)
    return {
        "adding_seconds": seconds,
        "resident_bytes": None if before is None or after is None else after - before,
        "declared_bytes": sum(bank.info(name).bytes for name in bank.names),
        "timings": {name: timing.as_dict() for name, timing in timings.items()},
    }


# however slow the machine is, all are answered
PATIENT = Limits(rows_waiting=10**6, seconds_waiting=3600, seconds_expected=3600)


def make_engine(settings: Mapping[str, Any], folder: Path, *, loaded: int) -> Engine:
    """Return an engine with random adapters of which this many fit into its memory."""
    model = folder / "model"
    new_model(settings).base_model.save_pretrained(model)
    words = SPECIAL + [f"w{number}" for number in range(SHAPES[settings["shape"]].vocabulary // 2)]
    vocabulary = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    vocabulary.pre_tokenizer = WhitespaceSplit()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=vocabulary, **names).save_pretrained(model)
    base = SharedBase(str(model))
    bank = make_bank(base)
    store = Store(base, bank, memory=10**12)
    for number, own in enumerate(saved_adapters(settings, folder)):
        store.add(f"a{number}", own)
    store.memory = store.loaded_bytes * loaded // len(store.names) + 1
    return Engine(store, limits=PATIENT, padded=not bank.packs)


def ask(engine: Engine, name: str, text: str) -> Future[list[Prediction]]:
    """Ask an adapter about a document."""
    return engine.submit(Request(name, [Document(text)], Classify()))


def at_once(engine: Engine, asked: Iterable[tuple[str, str]]) -> Iterator[Future[list[Prediction]]]:
    """Ask for many answers, so many of them at a time; yield the futures in order."""
    waiting: deque[Future[list[Prediction]]] = deque()
    for name, text in asked:
        if len(waiting) == AT_ONCE:
            yield waiting.popleft()
        waiting.append(ask(engine, name, text))
    yield from waiting


def logits_of(future: Future[list[Prediction]]) -> np.ndarray:
    """Wait for the answer to one document."""
    return future.result()[0].logits


def equal_to_alone(settings: Mapping[str, Any], notify: Callable[[str], object]) -> dict[str, Any]:
    """Ask random adapters, many at a time, and again one at a time; return the largest difference of the logits."""
    chance, documents = random.Random(2), texts(settings["requests"], settings)
    asked = [(f"a{chance.randrange(settings['documents'])}", text) for text in documents]
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(settings, Path(folder), loaded=settings["documents"])
        with engine:
            start = time.perf_counter()
            together = [logits_of(future) for future in at_once(engine, asked)]
            middle = time.perf_counter()
            notify("one at a time")
            alone = [logits_of(ask(engine, *one)) for one in asked]
            end = time.perf_counter()
    differences = [float(np.abs(one - other).max()) for one, other in zip(together, alone, strict=True)]
    return {
        "kinds": kinds_of(settings["method"]),
        "largest_difference": max(differences),
        "failed": failure({"mixed requests": {"outputs": max(differences)}}),
        "seconds": {"together": middle - start, "one at a time": end - middle},
    }


def cold_adapters(settings: Mapping[str, Any], notify: Callable[[str], object]) -> dict[str, Any]:
    """Ask one adapter again and again, beside it now and then one that has left the memory; return the latencies."""
    chance, text = random.Random(3), texts(1, settings)[0]
    waits: dict[str, list[float]] = {"warm": [], "warm beside cold": [], "cold": []}

    def timed(name: str) -> Callable[[], float]:
        start, ended = time.perf_counter(), list[float]()
        future = engine.submit(Request(name, [Document(text)], Classify()))
        future.add_done_callback(lambda _: ended.append(time.perf_counter()))

        def seconds() -> float:
            future.result()
            while not ended:
                time.sleep(0.0001)
            return ended[0] - start

        return seconds

    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(settings, Path(folder), loaded=settings["documents"] // 4)
        with engine:
            for number in range(settings["asked"]):
                timed("a0")()
                waits["warm"].append(timed("a0")())
                absent = sorted(set(engine.store.names) - {adapter.name for adapter in engine.store.loaded})
                cold, beside = timed(chance.choice(absent)), timed("a0")
                waits["warm beside cold"].append(beside())
                waits["cold"].append(cold())
                notify(f"{number + 1} asked")
    return {"latency": {name: percentiles(found) for name, found in waits.items()}}


def overload(settings: Mapping[str, Any], notify: Callable[[str], object]) -> dict[str, Any]:
    """Let requests of one document arrive by chance (Poisson) at shares of what the engine answers; return the waits.

    What it answers is measured first, by the same engine with the same batches: 64 requests that are refused nothing
    are in the queue at all times, for a quarter of the time before they count.
    """
    documents = texts(200, settings)
    with tempfile.TemporaryDirectory() as folder:
        limits, seconds = Limits(), settings["arriving_seconds"]
        engine = make_engine(settings, Path(folder), loaded=settings["documents"])
        with engine:
            names = engine.store.names
            engine.limits = replace(limits, seconds_waiting=PATIENT.seconds_waiting)
            saturated(engine, names, documents, seconds / 4)
            capacity = saturated(engine, names, documents, seconds)
            engine.limits = limits
            notify(f"{capacity:.1f} answered a second")
            found = {}
            for share in settings["shares"]:
                rate = share * capacity
                found[str(share)] = arriving(engine, names, documents, rate, seconds)
                notify(f"{share} of it")
    return {"answered_per_second": capacity, "limits": asdict(limits), "arrivals": found}


def saturated(engine: Engine, names: Sequence[str], documents: Sequence[str], seconds: float) -> float:
    """Return the requests that an engine answers a second, with 64 of them waiting for it."""
    chance, waiting, answered, patience = random.Random(4), list[Future[Any]](), 0, PATIENT.seconds_waiting
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or not answered:
        while len(waiting) < 64:
            text = Document(chance.choice(documents))
            waiting.append(engine.submit(Request(chance.choice(names), [text], Classify(), timeout=patience)))
        wait(waiting, return_when=FIRST_COMPLETED)
        answered += sum(one.done() for one in waiting)
        waiting = [one for one in waiting if not one.done()]
    rate = answered / (time.perf_counter() - start)
    wait(waiting)
    return rate


def arriving(
    engine: Engine, names: Sequence[str], documents: Sequence[str], rate: float, seconds: float
) -> dict[str, Any]:
    """Ask when it is due, answered or not; return how long the answers took, and how many requests were refused."""
    chance, waits, refused, taken = random.Random(5), list[float](), 0, list[Future[Any]]()

    def note(start: float, done: Future[Any]) -> None:
        if done.exception() is None:
            waits.append(time.perf_counter() - start)

    begin, due = time.perf_counter(), 0.0
    while (due := due + chance.expovariate(rate)) < seconds:
        time.sleep(max(0.0, begin + due - time.perf_counter()))
        start = time.perf_counter()
        try:
            future = engine.submit(Request(chance.choice(names), [Document(chance.choice(documents))], Classify()))
        except BusyError:
            refused += 1
            continue
        future.add_done_callback(partial(note, start))
        taken.append(future)
    wait(taken)
    late = sum(one.exception() is not None for one in taken)
    latency = percentiles(waits) if waits else None
    return {"rate": rate, "answered": len(waits), "refused": refused, "late": late, "latency": latency}


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, the 95th and the 99th of a hundred, and the longest."""
    p95, p99 = np.quantile(seconds, [0.95, 0.99])
    return {"p50": statistics.median(seconds), "p95": float(p95), "p99": float(p99), "max": max(seconds)}
