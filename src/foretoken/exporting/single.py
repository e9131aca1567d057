"""One trained model as one folder."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from foretoken.data.problems import Answer, names_of_problems
from foretoken.errors import BackboneError
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
from foretoken.exporting.onnx_file import OPSET, check_onnx, run_onnx, session_of, to_int8, write_onnx
from foretoken.exporting.words import WORDS, write_words
from foretoken.files import write_json
from foretoken.inference.predictor import Predictor, load_for_inference

Target: TypeAlias = Literal["onnx", "torch"]
FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
_ANSWERS = (Answer.CLASS, Answer.LABELS, Answer.NUMBER, Answer.TAGS)


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
