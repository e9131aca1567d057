"""Does a prefix lose its pull over a long text where positions rotate? Measured on a small pretrained Llama.

    python -m research.prefix_distance [--output research/records/prefix_distance] [--seeds 3] [--rates 0.03]

stories260K (Llama architecture, 5 layers, 8 heads of width 8, 512 positions, trained on TinyStories) learns to
continue texts of another kind, SQuALITY's stories, through a prefix alone; with the prefix at position 0 and with
queries that meet it without their rotation (``position_free``). Written down by position in the text: what the prefix
saves of the next token's loss, and how much of the attention it gets. The data folder is ``$FORETOKEN_DATA`` or
``../shared/data``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import struct
import time
from datetime import date
from itertools import pairwise, product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from peft import PeftModel, get_peft_model
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from foretoken import PrefixPropagationConfig, PrefixTuningConfig
from foretoken.files import write_text
from research.archive import write_records

LENGTH, ROWS, BATCH = 512, 8, 4
BINS = ((1, 9), (9, 33), (33, 65), (65, 129), (129, 257), (257, 511))
METHODS = {"prefix-propagation": PrefixPropagationConfig, "prefix-tuning": PrefixTuningConfig}


def read_llama2c(path: Path, attention: str) -> LlamaForCausalLM:
    """Read a checkpoint of llama2.c (version 0), whose rotations turn neighbours where transformers turns halves."""
    raw = path.read_bytes()
    width, inner, layers, heads, key_heads, vocabulary, length = struct.unpack("7i", raw[:28])
    keys = width // heads * key_heads
    shapes = {
        "embed_tokens": (vocabulary, width),
        "input_layernorm": (layers, width),
        "self_attn.q_proj": (layers, width, width),
        "self_attn.k_proj": (layers, keys, width),
        "self_attn.v_proj": (layers, keys, width),
        "self_attn.o_proj": (layers, width, width),
        "post_attention_layernorm": (layers, width),
        "mlp.gate_proj": (layers, inner, width),
        "mlp.down_proj": (layers, width, inner),
        "mlp.up_proj": (layers, inner, width),
        "norm": (width,),
    }
    sizes = [math.prod(shape) for shape in shapes.values()]
    numbers = torch.frombuffer(bytearray(raw[28:]), dtype=torch.float32)[: sum(sizes)].split(sizes)
    parts = {name: x.view(shape) for (name, shape), x in zip(shapes.items(), numbers, strict=True)}
    for name, count in (("self_attn.q_proj", heads), ("self_attn.k_proj", key_heads)):
        parts[name] = parts[name].view(layers, count, -1, 2, width).transpose(2, 3).reshape(shapes[name])
    embeddings, norm = parts.pop("embed_tokens"), parts.pop("norm")
    state = {f"model.layers.{i}.{name}.weight": w[i].clone() for name, w in parts.items() for i in range(layers)}
    state |= {"model.embed_tokens.weight": embeddings, "lm_head.weight": embeddings, "model.norm.weight": norm}
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary,
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        attn_implementation=attention,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


class Pieces:
    """llama2.c's byte-pair encoding: of a word's pieces, the pair that makes the best scored piece is joined first."""

    def __init__(self, path: Path) -> None:
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
        self.ids = {piece: number for number, (piece, _) in enumerate(rows)}
        self.scores = {piece: float(score) for piece, score in rows}
        self.known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without a mark of its start."""
        return [token for word in text.split() for token in self.word(f"▁{word}")]

    def word(self, word: str) -> list[int]:
        """Return one word's ids."""
        if word not in self.known:
            pieces = [p for c in word for p in ([c] if c in self.ids else [f"<0x{b:02X}>" for b in c.encode()])]
            while pairs := [(self.scores[a + b], -i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in self.ids]:
                at = -max(pairs)[1]
                pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
            self.known[word] = [self.ids[piece] for piece in pieces]
        return self.known[word]


def stories(path: Path, pieces: Pieces, count: int) -> Tensor:
    """Return (count, LENGTH) ids cut from stories, each cut after a mark of its start."""
    cuts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        ids = pieces.encode(re.sub(r"\s+", " ", json.loads(line)["document"]))
        cuts += [[1, *ids[i : i + LENGTH - 1]] for i in range(0, len(ids) - LENGTH, LENGTH)]
    order = torch.randperm(len(cuts), generator=torch.Generator().manual_seed(0))
    return torch.tensor(cuts)[order[:count]]


@torch.no_grad()
def losses(model: torch.nn.Module, texts: Tensor) -> Tensor:
    """Return the (count, LENGTH - 1) losses of the next tokens."""
    found = []
    for ids in texts.split(8):
        logits = model(input_ids=ids).logits[:, :-1]
        found.append(functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none"))
    return torch.cat(found)


@torch.no_grad()
def masses(model: torch.nn.Module, texts: Tensor) -> Tensor:
    """Return the (layers, LENGTH) attention that is not on the text's own keys, the mean of heads and texts."""
    parts = [torch.stack(model(input_ids=ids, output_attentions=True).attentions) for ids in texts.split(8)]
    return 1 - torch.cat(parts, dim=1).sum(-1).mean(dim=(1, 2))


def binned(values: Tensor) -> list[float]:
    """(..., LENGTH) -> the mean over everything of every bin of positions."""
    return [values[..., first:end].mean().item() for first, end in BINS]


def adapted(weights: Path, method: str, *, position_free: bool, attention: str = "sdpa") -> PeftModel:
    """Return the model with a new adapter."""
    options = {"num_virtual_tokens": ROWS, "prefix_dropout": 0.0, "position_free": position_free}
    return get_peft_model(read_llama2c(weights, attention), METHODS[method](task_type="CAUSAL_LM", **options))


def train(model: PeftModel, texts: Tensor, *, steps: int, rate: float, seed: int) -> None:
    """Train the prefix; the rate falls to zero."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    model.train()
    for _ in range(steps):
        ids = texts[torch.randint(len(texts), (BATCH,), generator=generator)]
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
    model.eval()


def measure(
    weights: Path, data: dict[str, Tensor], *, method: str, position_free: bool, rate: float, seed: int, steps: int
) -> dict[str, Any]:
    """Return one run's losses, savings and masses."""
    torch.manual_seed(seed)
    started = time.perf_counter()
    model = adapted(weights, method, position_free=position_free).eval()
    looking = adapted(weights, method, position_free=position_free, attention="eager").eval()
    looking.load_state_dict(model.state_dict())
    before = masses(looking, data["dev"][:16])
    train(model, data["train"], steps=steps, rate=rate, seed=seed)
    looking.load_state_dict(model.state_dict())
    found = losses(model, data["dev"])
    return {
        "method": method,
        "position_free": position_free,
        "rate": rate,
        "seed": seed,
        "loss": found.mean().item(),
        "saved": binned(functional.pad(data["frozen"] - found, (0, 1))),
        "mass at the start": [binned(layer) for layer in before],
        "mass": [binned(layer) for layer in masses(looking, data["dev"][:16])],
        "seconds": round(time.perf_counter() - started, 1),
    }


def shown(values: list[float], digits: int = 3) -> str:
    """Return the mean, and the standard deviation where there are several."""
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"


def columns(rows: list[list[float]], digits: int = 3) -> str:
    """Return every bin's mean over runs as cells of a table."""
    return " | ".join(shown(list(values), digits) for values in zip(*rows, strict=True))


def markdown(result: dict[str, Any]) -> str:
    """Write the result down as tables."""
    bins, line = " | ".join(f"{first}-{end - 1}" for first, end in BINS), " | ".join("---" for _ in BINS)
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for run in result["runs"]:
        kind = "position-free" if run["position_free"] else "at position 0"
        groups.setdefault((run["method"], kind, run["rate"]), []).append(run)
    lines = [
        f"Loss saved per token by the position of the token (frozen model: {result['frozen loss']:.3f} in all).",
        "",
        f"| method | prefix | rate | loss | {bins} |",
        f"| --- | --- | --- | --- | {line} |",
    ]
    for (method, kind, rate), runs in groups.items():
        loss = shown([run["loss"] for run in runs])
        lines.append(f"| {method} | {kind} | {rate} | {loss} | {columns([run['saved'] for run in runs])} |")
    for mass, title in (("mass at the start", "before training"), ("mass", "after training")):
        lines += ["", f"Share of the attention that the prefix gets, {title}.", ""]
        lines += [f"| method | prefix | rate | layer | {bins} |", f"| --- | --- | --- | --- | {line} |"]
        for (method, kind, rate), runs in groups.items():
            if mass == "mass at the start" and rate != result["rates"][0]:
                continue
            shown_rate = rate if mass == "mass" else ""
            for layer in range(len(runs[0][mass])):
                cells = " | ".join(f"{mean(v):.3f}" for v in zip(*(run[mass][layer] for run in runs), strict=True))
                lines.append(f"| {method} | {kind} | {shown_rate} | {layer} | {cells} |")
    return "\n".join([*lines, "", result["how"], ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="write OUTPUT.json.gz and OUTPUT.md")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments = parser.parse_args()
    root = Path(os.environ.get("FORETOKEN_DATA") or Path(__file__).parents[2] / "shared" / "data")
    weights = root / "weights_tiny" / "stories260K.bin"
    if not weights.is_file():
        parser.exit(0, f"skipped: no {weights}; set FORETOKEN_DATA to the folder that has weights_tiny and squality\n")
    torch.set_num_threads(1)
    pieces = Pieces(root / "weights_tiny" / "tok512.vocab")
    data = {name: stories(root / "squality" / f"{name}.jsonl", pieces, n) for name, n in (("train", 4000), ("dev", 64))}
    data["frozen"] = losses(read_llama2c(weights, "sdpa"), data["dev"])
    runs = []
    for method, rate, free, seed in product(arguments.methods, arguments.rates, (False, True), range(arguments.seeds)):
        options = {"method": method, "position_free": free, "rate": rate, "seed": seed}
        runs.append(measure(weights, data, steps=arguments.steps, **options))
        print(json.dumps(options | {"loss": runs[-1]["loss"]}), flush=True)
    result = {
        "frozen loss": data["frozen"].mean().item(),
        "frozen by position": binned(functional.pad(data["frozen"], (0, 1))),
        "bins": BINS,
        "rates": arguments.rates,
        "runs": runs,
        "how": f"stories260K on SQuALITY's stories, {len(data['train'])} training and {len(data['dev'])} other cuts of "
        f"{LENGTH} tokens; P = {ROWS}, {arguments.steps} steps of Adam, batch {BATCH}, rates fall to 0, "
        f"{arguments.seeds} seeds. transformers {transformers.__version__}, torch {torch.__version__}, one core of "
        f"{platform.machine()}, {date.today().isoformat()}.",
    }
    if arguments.output is None:
        print(markdown(result))
    else:
        write_records(arguments.output.with_suffix(".json.gz"), result)
        write_text(arguments.output.with_suffix(".md"), markdown(result))


if __name__ == "__main__":
    main()
