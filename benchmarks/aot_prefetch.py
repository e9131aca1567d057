"""What a fused table of ahead-of-time P-tuning costs: warm, cold, and cold with reading ahead.

    python benchmarks/aot_prefetch.py [--output benchmarks/results/aot_prefetch] [--models minilm roberta longformer]

Models of the named shapes with random weights, one document. The table is written to ``--folder`` (2.8 GB are enough).
Cold means that the file's pages are dropped before each forward (``posix_fadvise``, Linux; on a file system that keeps
them, such as tmpfs, the script says so and stops). "No lookup" is the same model, with the same attention engine, whose
entries add nothing. Forwards are interleaved. Beside the models, the warm lookup of one layer by itself: as it is done,
directly from the table of half precision, and the addition alone, which no kernel of any kind could be faster than.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from peft import get_peft_model
from torch import Tensor, nn

from foretoken import AoTPTuningConfig
from foretoken.files import write_json
from foretoken.methods.aot import table as aot_table
from foretoken.methods.aot.modules import Fused, TokenEntry
from foretoken.methods.aot.table import FILE_NAME, FusedTable, write_table

SHAPES: dict[str, dict[str, Any]] = {
    "minilm": {"layers": 12, "width": 384, "vocabulary": 30522, "length": 128},
    "roberta": {"layers": 12, "width": 768, "vocabulary": 50265, "length": 128},
    "longformer": {"layers": 2, "width": 768, "vocabulary": 50265, "length": 4096},
}


def model_of(name: str, *, layers: int, width: int, vocabulary: int, length: int) -> nn.Module:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 12,
        "intermediate_size": 4 * width,
        "vocab_size": vocabulary,
        "max_position_embeddings": length + 2,
    }
    torch.manual_seed(0)
    if name == "longformer":
        config = transformers.LongformerConfig(**sizes, attention_window=[512] * layers, pad_token_id=1)
        return transformers.LongformerForSequenceClassification(config).eval()
    if name == "roberta":
        return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**sizes, pad_token_id=1)).eval()
    return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes)).eval()


def tokens(vocabulary: int, length: int) -> Tensor:
    """Draw token ids as uneven as words are (Zipf's law)."""
    weights = 1 / (torch.arange(vocabulary).float() + 10)
    weights[:4] = 0  # no padding
    return torch.multinomial(weights, length, replacement=True)[None]


def drop_pages(path: Path) -> None:
    gc.collect()
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def reopen(model: nn.Module, path: Path, shape: tuple[int, int, int], *, cold: bool, ahead: bool) -> FusedTable:
    """Map the table anew, so that no page of the file is in use, and drop its pages."""
    fused = [module for module in model.modules() if isinstance(module, Fused)]
    for module in fused:
        module.table = None
    if cold:
        drop_pages(path)
    table = FusedTable(path, shape)
    if cold and table.prefetcher is not None and table.prefetcher.is_cached(shape[0] - 1, shape[1] // 2):
        raise SystemExit(f"the file system of {path} keeps the file in memory; give another --folder")
    table.prefetcher = table.prefetcher if ahead else None
    for module in fused:
        module.table = table
    return table


def seconds(model: nn.Module, ids: Tensor) -> float:
    start = time.perf_counter()
    with torch.no_grad():
        model(input_ids=ids)
    return time.perf_counter() - start


def measure(name: str, folder: Path, repeats: int) -> dict[str, Any]:
    shape = SHAPES[name]
    dimensions = shape["layers"], shape["vocabulary"], shape["width"]
    path = folder / FILE_NAME
    write_table(
        path, lambda _, ids: torch.randn(1, shape["width"]).expand(len(ids), -1), shape=dimensions, dtype=torch.float16
    )
    plain = model_of(name, **shape)
    adapted = get_peft_model(
        model_of(name, **shape), AoTPTuningConfig(task_type="SEQ_CLS", fused_table=str(path))
    ).eval()
    ways = {"cold": (True, False), "cold, read ahead": (True, True), "warm": (False, True)}
    times: dict[str, list[float]] = {"transformers": [], "no lookup": [], **{way: [] for way in ways}}
    for repeat in range(repeats + 1):
        ids, other = (tokens(shape["vocabulary"], shape["length"]) for _ in range(2))
        taken = {"transformers": seconds(plain, ids)}
        for way, (cold, ahead) in ways.items():
            table = reopen(adapted, path, dimensions, cold=cold, ahead=ahead)
            if not cold:
                table.values.sum()  # every page is read
                with patch.object(TokenEntry, "on_text", lambda entry, text, token_ids: text):
                    seconds(adapted, other)
                    taken["no lookup"] = seconds(adapted, ids)
                seconds(adapted, other)
            taken[way] = seconds(adapted, ids)
            if table.prefetcher is not None and table.prefetcher.worker is not None:
                table.prefetcher.worker.join()
            del table
        if repeat:
            for way, value in taken.items():
                times[way].append(value)
    alone = lookup(adapted, shape, repeats)
    forward = min(times["no lookup"])
    return {
        **shape,
        "milliseconds of a forward": {way: 1e3 * median(values) for way, values in times.items()},
        "least milliseconds": {way: 1e3 * min(values) for way, values in times.items()},
        "microseconds of a layer's lookup": alone,
        "share of the lookups in a forward": shape["layers"] * alone["entry"] / 1e6 / forward,
    }


def lookup(model: nn.Module, shape: dict[str, Any], repeats: int) -> dict[str, float]:
    """Time the work of one layer's entry, and the alternatives."""
    entry = next(module for module in model.modules() if isinstance(getattr(module, "shift", None), Fused))
    ids = tokens(shape["vocabulary"], shape["length"])
    text = torch.randn(1, shape["length"], shape["width"])
    embedding, stored = nn.functional.embedding, entry.shift.table.values[0]
    ways: dict[str, Callable[[], Tensor]] = {
        "entry": lambda: entry.on_text(text, ids),
        "direct": lambda: embedding(ids, stored).to(text.dtype).add_(text),
        "addition alone": lambda: text + text,
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    with torch.no_grad():
        for _ in range(20 * repeats):
            for way, run in ways.items():
                start = time.perf_counter()
                run()
                times[way].append(time.perf_counter() - start)
    return {way: 1e6 * median(values) for way, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="write OUTPUT.json")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the table is written (default: a temporary folder)")
    arguments = parser.parse_args()
    if not aot_table.SUPPORTED:
        parser.exit(0, "skipped: this system has no posix_fadvise and RWF_NOWAIT (Linux has)\n")
    torch.set_num_threads(arguments.threads)
    runs = {}
    for name in arguments.models:
        with TemporaryDirectory(dir=arguments.folder) as folder:
            runs[name] = measure(name, Path(folder), arguments.repeats)
        print(name, runs[name], flush=True)
    result = {
        "models": runs,
        "how": f"random weights, float32, table of float16, batch 1, median of {arguments.repeats} interleaved "
        f"forwards, {arguments.threads} thread(s) of {platform.machine()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, {date.today().isoformat()}",
    }
    if arguments.output is not None:
        write_json(arguments.output.with_suffix(".json"), result)


if __name__ == "__main__":
    main()
