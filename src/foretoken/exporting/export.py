"""`foretoken.export`: a trained adapter with its head, tokenizer and recalibration as one folder for other runtimes."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from foretoken import left
from foretoken.data.problems import Answer, names_of_problems
from foretoken.errors import BackboneError, ConfigError, no_such, quoted
from foretoken.exporting.checking import Run, check, check_head, check_rows, differences, expected_of
from foretoken.exporting.folder import (
    CONFIG,
    HEAD,
    TOKENIZER,
    config_of,
    input_names,
    write_head,
    write_reading,
    write_tokenizer,
)
from foretoken.exporting.graph import Graph, make_graph, samples, traced
from foretoken.exporting.onnx_file import OPSET, check_installed, check_onnx, run_onnx, session_of, to_int8, write_onnx
from foretoken.exporting.shared import export_shared
from foretoken.exporting.words import WORDS, write_words
from foretoken.files import PathLike, atomic_directory, write_json
from foretoken.inference.predictor import Predictor, load_for_inference
from foretoken.outputs import check_new_folder

log = logging.getLogger(__name__)
Target: TypeAlias = Literal["onnx", "torch"]
FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
_ANSWERS = (Answer.CLASS, Answer.LABELS, Answer.NUMBER, Answer.TAGS)


def export(
    source: PathLike | Sequence[PathLike],
    output: PathLike,
    *,
    to: Target = "onnx",
    shared: bool = False,
    int8: bool = False,
    base_model: str | None = None,
    accept_changed: bool = False,
) -> float:
    """Write a trained model as a folder that runs without foretoken, peft and transformers.

    The folder holds the graph for any number and length of documents, the head, ``tokenizer.json``, ``config.json``
    (labels, lengths, chunks, recalibration), ``read.py``, which reads and answers with numpy, and a ``README.md``.

    Args:
        source: a run, adapter or model folder; with ``shared`` several of them.
        output: the folder to write; it must not exist, or be empty.
        to: ``onnx`` for onnxruntime, ``torch`` for PyTorch alone.
        shared: write one graph of the backbone and one small file for each adapter; ONNX only.
        int8: keep the weights of matrix products in 8 bits; ONNX only.
        base_model: where the pretrained model of an adapter is, in place of what its folder says.
        accept_changed: export an adapter though its pretrained model is not the one that it was trained on.

    Returns:
        How far the outputs are at most from the model's, on documents of other sizes than the graph was made from.

    Raises:
        AdapterError: the run is not finished, or its files are damaged.
        BackboneError: there is no such graph of the model, or its outputs are others than the model's.
        ConfigError: options that do not go together, or a missing package.
        SaveError: ``output`` is not empty, or cannot be written.

    >>> export("runs/mail", "exported", to="torch", int8=True)
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: int8 is for ONNX, not for torch; leave it out, or export to onnx
    """
    folder = Path(output)
    sources = [Path(item) for item in ([source] if isinstance(source, str | os.PathLike) else source)]
    check_options(sources, to, shared=shared, int8=int8)
    check_new_folder(folder, sources)
    load = partial(load_for_export, base_model=base_model, accept_changed=accept_changed)
    with atomic_directory(folder) as temporary:
        if shared:
            difference = export_shared(sources, temporary, load)
        else:
            difference = export_one(load(sources[0]), temporary, to, int8=int8)
    log.info("%s: outputs at most %.1e from the model's", folder, difference)
    return difference


def check_options(sources: Sequence[Path], to: str, *, shared: bool, int8: bool) -> None:
    """Raise ConfigError for options that do not go together, before anything is loaded."""
    if to not in FILES:
        gone = left.gone(f"to: {to}", left.VALUES)
        raise ConfigError(f"to: {quoted(to)} {gone}" if gone else no_such("target", to, FILES))
    for name, given in (("int8", int8), ("shared", shared)):
        if given and to != "onnx":
            raise ConfigError(f"{name} is for ONNX, not for {to}; leave it out, or export to onnx")
    if shared and int8:
        raise ConfigError("int8 is for a folder of one adapter; leave out int8 or shared")
    if not sources or (len(sources) > 1 and not shared):
        raise ConfigError(f"got {len(sources)} folders, expected one, or several with shared (--shared)")
    check_installed(to)


def load_for_export(source: Path, *, base_model: str | None = None, accept_changed: bool = False) -> Predictor:
    """Load what is to be exported, on the processor.

    Raises:
        AdapterError: there is nothing that can be loaded.
        BackboneError: it is of a kind that is not exported.
    """
    predictor = load_for_inference(source, base_model=base_model, accept_changed=accept_changed)
    name, is_pair = predictor.problem.name, predictor.model.config.is_encoder_decoder
    if predictor.problem.facts.answer not in _ANSWERS or is_pair:
        raise BackboneError(
            f"{source} is {'an encoder-decoder' if is_pair else name.replace('_', ' ')}; what is exported are encoders "
            f"and decoders for {', '.join(names_of_problems(*_ANSWERS))}; run it with foretoken itself"
        )
    torch.nn.Module.to(predictor.model, "cpu")
    return predictor


def export_one(predictor: Predictor, folder: Path, to: Target, *, int8: bool) -> float:
    """Write everything into a folder that is there, and return how far the outputs are from the model's.

    Raises:
        BackboneError: there is no such graph of the model.
    """
    write_tokenizer(predictor, folder / TOKENIZER)
    graph = make_graph(predictor)
    difference = write_graph(predictor, graph, folder / FILES[to], to, int8=int8)
    write_head(graph, folder / HEAD)
    if predictor.words is not None:
        write_words(predictor.words, folder / WORDS)
    more = {"opset": OPSET} if to == "onnx" else {}
    values = config_of(predictor, graph, runtime=to, file=FILES[to], int8=int8, largest_difference=difference, **more)
    check_rows(predictor, folder / TOKENIZER, values)
    write_json(folder / CONFIG, values)
    write_reading(folder, predictor, target=to)
    return difference


def write_graph(predictor: Predictor, graph: Graph, path: Path, to: Target, *, int8: bool = False) -> float:
    """Write the graph, and return how far its outputs are from the model's.

    Raises:
        BackboneError: there is no graph, or none of this model.
    """
    example, *others = samples(predictor)
    expected = expected_of(graph, others)
    check_head(graph, expected)
    program = traced(graph, example)
    if to == "torch":
        buffer = io.BytesIO()  # PyTorch's own writing of files ends the process where the disk is full
        torch.export.save(program, buffer)
        path.write_bytes(buffer.getbuffer())
        return check(torch_run(path, graph), others, expected)
    write_onnx(program, path, inputs=input_names(predictor), outputs=graph.output_names)
    check_onnx(path)
    difference = check(onnx_run(path), others, expected)
    if not int8:
        return difference
    to_int8(path)
    return differences(onnx_run(path), others, expected)


def onnx_run(file: Path) -> Run:
    """Return what runs samples in a session of a file."""
    session = session_of(file)
    return lambda sample: run_onnx(session, sample.inputs)


def torch_run(path: Path, graph: Graph) -> Run:
    """Return what runs samples in a program that is loaded again."""
    module = torch.export.load(path).module()
    return lambda sample: dict(zip(graph.output_names, module(*sample.arguments), strict=True))
