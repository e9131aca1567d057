"""`export`: an adapted encoder in onnxruntime, in 32 and in 8 bits, beside its own forward pass.

One document at a time, as a server gets them, and the same file for all lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from foretoken.bench.measure import Effort, compare, prefixed
from foretoken.bench.models import PREFIX_LENGTH, SHAPES, documents, longformer, roberta
from foretoken.bench.names import OURS
from foretoken.bench.run.plan import Options, Part
from foretoken.errors import ConfigError
from foretoken.exporting.graph import Graph, Sample, traced
from foretoken.exporting.onnx_file import check_installed, run_onnx, session_of, to_int8, write_onnx
from foretoken.training.model.adapter import attach

ONNX, INT8 = "onnxruntime", "onnxruntime, int8"
LENGTHS = {"roberta": (32, 128, 512), "longformer": (512, 1024, 2048, 4096)}
Notify = Callable[[str], object]


def plan(options: Options) -> list[Part]:
    """Return one part per family."""
    if options.device != "cpu":
        raise ConfigError("bench export measures onnxruntime on the processor; leave out --device")
    check_installed("onnx")
    parts = []
    for family, lengths in LENGTHS.items():
        layers = options.layers or (1 if options.quick else 2)
        sizes = [options.size(n) for n in (lengths[:2] if options.quick else lengths)]
        effort = options.effort(rounds=5, seconds=30)
        settings = options.settings(family=family, lengths=sizes, layers=layers, effort=effort)
        parts.append(Part("export", f"{family}, {layers} layers, one document", settings=settings))
    return parts


def measure(part: Part, notify: Notify) -> dict[str, Any]:
    """Export, and time every length in turn."""
    settings = part.settings
    shape, longest = SHAPES[settings["shape"]], max(settings["lengths"])
    make = longformer if settings["family"] == "longformer" else roberta
    notify("building the model")
    base = make(shape, layers=settings["layers"], max_length=longest, dtype=torch.float32, device="cpu")
    model = attach(base, {"name": "prefix-propagation", "num_virtual_tokens": PREFIX_LENGTH})
    graph = Graph(model, None, has_probabilities=True).eval().requires_grad_(False)
    batches = {n: given(documents(shape, [n], "cpu")) for n in settings["lengths"]}
    with TemporaryDirectory(prefix="foretoken-bench-") as folder:
        notify("exporting")
        sessions = exported(graph, documents(shape, [longest, longest // 2], "cpu"), Path(folder))
        lengths = []
        for n, batch in batches.items():
            outputs: dict[str, Any] = {}
            calls = {OURS: partial(own, graph, batch, outputs)}
            calls |= {name: partial(theirs, session, name, batch, outputs) for name, session in sessions.items()}
            found = compare(calls, effort=Effort(**settings["effort"]), notify=prefixed(notify, f"n {n}"))
            apart = {name: float((outputs[name] - outputs[OURS]).abs().max()) for name in sessions}
            timings = {name: timing.as_dict() for name, timing in found.items()}
            lengths.append({"n": n, "timings": timings, "differences": apart})
    worst = max(length["differences"][ONNX] for length in lengths)
    return {"lengths": lengths, "failed": f"outputs differ by {worst:.1e}" if worst > 1e-4 else None}


def given(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what the graph takes of a batch."""
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def exported(graph: Graph, batch: Mapping[str, Tensor], folder: Path) -> dict[str, Any]:
    """Return sessions of the graph, with as many threads as PyTorch has."""
    whole, small = folder / "whole.onnx", folder / "int8.onnx"
    write_onnx(traced(graph, Sample(given(batch))), whole, inputs=list(given(batch)), outputs=graph.output_names)
    copyfile(whole, small)
    to_int8(small)
    threads = torch.get_num_threads()
    return {name: session_of(file, threads) for name, file in ((ONNX, whole), (INT8, small))}


@torch.inference_mode()
def own(graph: Graph, batch: dict[str, Tensor], outputs: dict[str, Any]) -> None:
    """Run the model itself."""
    outputs[OURS] = graph(**batch)[0]


def theirs(session: Any, name: str, batch: dict[str, Tensor], outputs: dict[str, Any]) -> None:
    """Run a session."""
    outputs[name] = torch.as_tensor(run_onnx(session, batch)["logits"])
