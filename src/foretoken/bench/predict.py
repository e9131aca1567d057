"""`predict`: a file of short texts from its rows to labels, beside transformers' pipeline and sentence-transformers.

foretoken runs with an adapter, the others the same weights without one: the pipeline classifies a list of texts,
`encode` returns their vectors. Prefix-propagation computes rows of its own beside every text's tokens, the decoupled
prefix does not.
"""

from __future__ import annotations

import csv
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, pipeline

from foretoken.bench.measure import Effort, compare
from foretoken.bench.names import ENCODE, OURS, PIPELINE, TEXT_METHODS
from foretoken.bench.run.plan import Options, Part
from foretoken.data.load import load_inputs
from foretoken.data.options import DataOptions
from foretoken.data.plain_table import Table
from foretoken.errors import ConfigError
from foretoken.inference.int8 import check_units
from foretoken.inference.predictor import Predictor, load_for_inference, predict_rows
from foretoken.inference.shared_base import INT8
from foretoken.lengthening import DEMO_MODEL, resolve_source
from foretoken.machine.precision import BF16, FP32, fastest_precision
from foretoken.training.model.adapter import attach
from foretoken.training.model.load import quiet_transformers

BATCH, TEXTS, MEDIAN_WORDS, SIGMA, SEED = 32, 10_000, 12, 0.6, 0
Notify = Callable[[str], object]


def plan(options: Options) -> list[Part]:
    """Return one part per method."""
    if options.device != "cpu":
        raise ConfigError("bench predict measures the processor; leave out --device")
    sizes = {"count": 64 if options.quick else TEXTS, "effort": options.effort(rounds=3, seconds=600)}
    return [
        Part("predict", f"{sizes['count']:,} short texts, {method}", settings=options.settings(method=method, **sizes))
        for method in TEXT_METHODS
    ]


def measure(part: Part, notify: Notify) -> dict[str, Any]:
    """Time the candidates in turn on the same texts."""
    settings = part.settings
    with tempfile.TemporaryDirectory(prefix="foretoken-bench-") as folder:
        notify("building the model")
        place = Path(folder)
        written = texts(vocabulary(), settings["count"])
        adapter = saved(place, settings["method"], layers=2 if settings["shape"] == "tiny" else None)
        file = place / "texts.csv"
        with file.open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([["text"], *([text] for text in written)])
        predictors = in_precisions(adapter)
        calls: dict[str, Callable[[], object]] = {
            f"{OURS}, {name}": partial(ours, predictor, file, place / f"{name}.jsonl")
            for name, predictor in predictors.items()
        }
        calls |= others(place / "base", written)
        timings = compare(calls, effort=Effort(**settings["effort"]), notify=notify)
        shares = {name: seconds_of(predictor, file, place / "again.jsonl") for name, predictor in predictors.items()}
        tokens = sum(len(ids) for ids in predictors[FP32].tokenizer(written)["input_ids"])
    return {
        "texts": len(written),
        "tokens": tokens,
        "seconds_of": shares,
        "without": [] if ENCODE in calls else [f"{ENCODE}: pip install sentence-transformers"],
        "timings": {name: timing.as_dict() for name, timing in timings.items()},
    }


def vocabulary() -> list[str]:
    """Return the whole words of letters that the demo model's tokenizer has."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_source(DEMO_MODEL))
    return sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)


def texts(words: Sequence[str], count: int) -> list[str]:
    """Return texts with log-normal numbers of words, as titles, questions and messages have.

    >>> texts(["one"], 2) == texts(["one"], 2)
    True
    """
    chance = random.Random(SEED)
    lengths = [min(256, 1 + int(chance.lognormvariate(math.log(MEDIAN_WORDS), SIGMA))) for _ in range(count)]
    return [" ".join(chance.choice(words) for _ in range(length)) for length in lengths]


def saved(folder: Path, method: str, *, layers: int | None) -> Path:
    """Write the demo model with a new head, or a model of a few narrow layers; return an adapter of it by defaults."""
    source = resolve_source(DEMO_MODEL)
    tokenizer = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(SEED)
    with quiet_transformers():
        if layers is None:
            model = BertForSequenceClassification.from_pretrained(source)
        else:
            sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
            config = BertConfig(vocab_size=len(tokenizer), num_hidden_layers=layers, **sizes)
            model = BertForSequenceClassification(config)
        model.save_pretrained(folder / "base")
        tokenizer.save_pretrained(folder / "base")
    adapted: Any = attach(model, {"name": method})
    adapted.peft_config["default"].base_model_name_or_path = str(folder / "base")
    adapted.save_pretrained(str(folder / "adapter"))
    return folder / "adapter"


def in_precisions(adapter: Path) -> dict[str, Predictor]:
    """Load an adapter in fp32, in bf16 where it is faster, and in int8 where the processor has units for it."""
    found: dict[str, Predictor] = {FP32: load_for_inference(adapter)}
    if fastest_precision(found[FP32].model.config, "cpu").precision == BF16:
        found[BF16] = load_for_inference(adapter, precision=BF16)
    try:
        check_units()
    except ConfigError:
        return found
    return found | {INT8: load_for_inference(adapter, precision=INT8)}


def ours(predictor: Predictor, file: Path, output: Path) -> None:
    """Do what `foretoken predict` does once the model is loaded."""
    rows = load_inputs(file, DataOptions(path=str(file)), predictor.problem.name)
    outputs, *_ = predict_rows(predictor, rows)
    write(predictor, outputs, rows, output)


def write(predictor: Predictor, outputs: Any, rows: Table, output: Path) -> None:
    """Write one line of JSON per text."""
    answers = predictor.problem.to_json(outputs, rows)
    output.write_text("".join(f"{json.dumps(answer)}\n" for answer in answers), encoding="utf-8")


def seconds_of(predictor: Predictor, file: Path, output: Path) -> dict[str, float]:
    """Return the seconds that reading, tokenising, the model and writing take."""
    clock = [time.perf_counter()]
    rows = load_inputs(file, DataOptions(path=str(file)), predictor.problem.name)
    clock.append(time.perf_counter())
    predictor.problem.encode(rows, predictor.settings)
    clock.append(time.perf_counter())
    outputs, *_ = predict_rows(predictor, rows)
    clock.append(time.perf_counter())
    write(predictor, outputs, rows, output)
    clock.append(time.perf_counter())
    reading, tokenising, predicting, writing = (after - before for before, after in pairwise(clock))
    model = max(0.0, predicting - tokenising)  # which predicting does again
    return {"reading": reading, "tokenising": tokenising, "model": model, "writing": writing}


def others(folder: Path, written: list[str]) -> dict[str, Callable[[], object]]:
    """Return what the others do with the texts."""
    classify: Any = pipeline("text-classification", model=str(folder), device=-1)
    calls: dict[str, Callable[[], object]] = {
        PIPELINE: lambda: classify(written, batch_size=BATCH, truncation=True),
    }
    if find_spec("sentence_transformers") is not None:
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(str(folder), device="cpu")  # with the mean of the tokens
        calls[ENCODE] = lambda: encoder.encode(written, batch_size=BATCH, show_progress_bar=False)
    return calls
