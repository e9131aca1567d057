"""FlexAttention against transformers on a GPU: one Longformer attention, long documents, bf16.

    python -m benchmarks.flex_gpu [--output benchmarks/results/flex_gpu] [--lengths 4096 8192 16384] [--batches 1 8 32]

One self-attention of longformer-base's shape (12 heads of width 64, window 512, the first token global) with random
weights, from hidden states to hidden states: as transformers computes it, and with the engine ``flex`` in the place of
its sliding chunks. Both use the same weights, and the outputs are compared before anything is timed. Times are medians
of interleaved runs; a size that does not fit in memory is written down as such. ``--check`` compares the outputs and
gradients of a small case on a CPU instead.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from datetime import date
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from foretoken.attention import Window
from foretoken.attention.engines.flex import attend_flex
from foretoken.attention.engines.flex_masks import window_mask
from foretoken.files import write_json

WIDTH, HEADS, WINDOW = 768, 12, 512
Attention = Callable[[Tensor], Tensor]


def attention_module(window: int) -> LongformerSelfAttention:
    config = transformers.LongformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_window=[window],
        num_hidden_layers=1,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    return LongformerSelfAttention(config, 0).requires_grad_(False)


def with_chunks(module: nn.Module, real: Tensor, is_global: Tensor) -> Attention:
    """Return what transformers computes."""
    marks = torch.zeros(real.shape, device=real.device).masked_fill(~real, -1e4).masked_fill(is_global, 1e4)
    marks = marks.to(next(module.parameters()).dtype)
    return lambda hidden: module(
        hidden,
        attention_mask=marks,
        is_index_masked=marks < 0,
        is_index_global_attn=marks > 0,
        is_global_attn=True,
    )[0]


def with_flex(module: Any, real: Tensor, is_global: Tensor) -> Attention:
    """Return the same with the engine; the first token's row comes from the global projections, as theirs does."""
    index = torch.zeros(len(real), 1, dtype=torch.long, device=real.device)
    window = Window(
        one_sided=module.one_sided_attn_window_size,
        key_mask=real,
        global_index=index,
        global_mask=is_global[:, :1],
    )

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(hidden: Tensor) -> Tensor:
        query, key, value = (heads(f(hidden)) for f in (module.query, module.key, module.value))
        f, _ = attend_flex(query, key, value, window_mask(window), scale=module.head_dim**-0.5)
        first = functional.scaled_dot_product_attention(
            heads(module.query_global(hidden[:, :1])),
            heads(module.key_global(hidden)),
            heads(module.value_global(hidden)),
            attn_mask=real[:, None, None],
        )
        return torch.cat([first, f[:, :, 1:]], dim=2).transpose(1, 2).flatten(2)

    return forward


def one_pass(attention: Attention, hidden: Tensor, *, backward: bool) -> tuple[Tensor, Tensor | None]:
    hidden = hidden.detach().requires_grad_(backward)
    with torch.set_grad_enabled(backward):
        out = attention(hidden)
    return out.detach(), torch.autograd.grad(out, hidden, torch.ones_like(out))[0] if backward else None


def difference(ours: Tensor, theirs: Tensor) -> float:
    return ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()


def milliseconds(run: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def batch_of(length: int, batch: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, and which tokens are real and global: documents of the full length."""
    torch.manual_seed(1)
    real = torch.ones(batch, length, dtype=torch.bool, device=device)
    is_global = torch.zeros_like(real)
    is_global[:, 0] = True
    return torch.randn(batch, length, WIDTH, device=device).to(dtype), real, is_global


def measure(length: int, batch: int, *, backward: bool, repeats: int) -> dict[str, Any]:
    dtype = torch.bfloat16
    module = attention_module(WINDOW).to("cuda", dtype)
    hidden, real, is_global = batch_of(length, batch, "cuda", dtype)
    engines = {
        "transformers": with_chunks(module, real, is_global),
        "flex": with_flex(module, real, is_global),
    }
    row: dict[str, Any] = {"length": length, "batch": batch, "pass": "step" if backward else "forward"}
    outputs, times = {}, {name: [] for name in engines}
    for name, attention in engines.items():
        try:
            outputs[name] = one_pass(attention, hidden, backward=backward)  # also compiles
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            one_pass(attention, hidden, backward=backward)
            row[f"{name} MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        except torch.cuda.OutOfMemoryError:
            row[name] = "out of memory"
    torch.cuda.empty_cache()
    if len(outputs) == len(engines):
        pairs = zip(outputs["flex"], outputs["transformers"], strict=True)
        for key, (ours, theirs) in zip(("difference", "gradient difference"), pairs, strict=True):
            if ours is not None:
                row[key] = difference(ours, theirs)
    for _ in range(repeats):
        for name in outputs:
            times[name].append(milliseconds(lambda n=name: one_pass(engines[n], hidden, backward=backward)))
    row |= {f"{name} ms": median(times[name]) for name in outputs}
    if len(outputs) == len(engines):
        row["speed-up"] = row["transformers ms"] / row["flex ms"]
    return row


def check() -> None:
    """Compare both on a CPU, in float64."""
    module = attention_module(16).double()
    hidden, real, is_global = batch_of(64, 2, "cpu", torch.float64)
    ours, theirs = (one_pass(make(module, real, is_global), hidden, backward=True) for make in (with_flex, with_chunks))
    worst = max(difference(one, other) for one, other in zip(ours, theirs, strict=True))
    if worst > 1e-6:
        raise SystemExit(f"output or gradient differs by {worst:.1e}")
    print(f"output and gradient agree on the CPU: largest relative difference {worst:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="write OUTPUT.json")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--check", action="store_true", help="compare outputs and gradients on a CPU, and stop")
    arguments = parser.parse_args()
    if arguments.check:
        check()
        return
    if not torch.cuda.is_available():
        print("skipped: no CUDA device; this benchmark measures nothing on a CPU (--check compares the outputs)")
        return
    rows = []
    for length, batch, backward in product(arguments.lengths, arguments.batches, (False, True)):
        rows.append(measure(length, batch, backward=backward, repeats=arguments.repeats))
        print({key: round(v, 4) if isinstance(v, float) else v for key, v in rows[-1].items()}, flush=True)
    result = {
        "rows": rows,
        "device": torch.cuda.get_device_name(),
        "machine": platform.platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
        "date": date.today().isoformat(),
        "how": f"one self-attention, {HEADS} heads, width {WIDTH}, window {WINDOW}, one global token, bfloat16, "
        f"median of {arguments.repeats} interleaved runs",
    }
    if arguments.output is not None:
        write_json(arguments.output.with_suffix(".json"), result)


if __name__ == "__main__":
    main()
