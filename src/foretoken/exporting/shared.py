"""One graph of a backbone, and one small file for each of many adapters: onnxruntime swaps them at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foretoken.errors import AdapterError, cut
from foretoken.exporting.checking import Run, check, check_head, check_rows, expected_of
from foretoken.exporting.folder import (
    CONFIG,
    TOKENIZER,
    answers_of,
    backend_of,
    config_of,
    input_names,
    reading_of,
    write_head,
    write_reading,
    write_tokenizer,
)
from foretoken.exporting.graph import Graph, Inputs, Sample, adapter_tensors, make_graph, samples, traced_shared
from foretoken.exporting.onnx_file import (
    OPSET,
    check_onnx,
    read_adapter,
    run_onnx,
    session_of,
    write_adapter,
    write_onnx,
)
from foretoken.exporting.words import WORDS, write_words
from foretoken.files import JsonObject, make_folder, write_json
from foretoken.inference.predictor import Predictor
from foretoken.outputs import check_name, plain_name
from foretoken.training.run.card import read_card
from foretoken.training.saved_folder import adapter_folder

ADAPTERS, SUFFIX, MODEL = "adapters", ".onnx_adapter", "model.onnx"


def export_shared(sources: Sequence[Path], folder: Path, load: Callable[[Path], Predictor]) -> float:
    """Write the graph, whose own adapter is the first one, and a file for every adapter.

    Args:
        sources: where the adapters are.
        folder: is there.
        load: loads one of them.

    Returns:
        How far the outputs of an adapter are at most from its model's.

    Raises:
        AdapterError: an adapter has other tensors, another backbone or another tokenizer than the first one.
        BackboneError: as in :func:`foretoken.exporting.export.export_one`.
    """
    names = adapter_names(sources)
    first = load(sources[0])
    with_words = any(read_card(adapter_folder(source)).recipe.words for source in sources)  # one graph has its outputs
    graph = make_graph(first, with_words=with_words)
    example, *others = samples(first)
    make_folder(folder / ADAPTERS)
    answers, expected = dict[str, JsonObject](), dict[str, list[Inputs]]()
    for name, source in zip(names, sources, strict=True):
        predictor = first if source is sources[0] else load(source)
        own = graph if predictor is first else make_graph(predictor, with_words=with_words)
        check_alike(source, predictor, own, first, graph)
        write_adapter(folder / ADAPTERS / f"{name}{SUFFIX}", adapter_tensors(own))
        write_head(own, folder / ADAPTERS / f"{name}.npz")
        if predictor.words is not None:
            make_folder(folder / WORDS)
            write_words(predictor.words, folder / WORDS / name)
        answers[name], expected[name] = answers_of(predictor), expected_of(own, others)
        check_head(own, expected[name])
    write_shared_graph(graph, example, folder / MODEL, input_names(first))
    session = session_of(folder / MODEL)
    most = max(
        check(adapter_run(session, folder / ADAPTERS / f"{name}{SUFFIX}"), others, outputs)
        for name, outputs in expected.items()
    )
    write_tokenizer(first, folder / TOKENIZER)
    values = config_of(first, graph, runtime="onnx", file=MODEL, int8=False, largest_difference=most, opset=OPSET)
    check_rows(first, folder / TOKENIZER, values)
    common = {name: value for name, value in values.items() if name not in answers[names[0]]}
    write_json(folder / CONFIG, common | {"adapters": answers})
    write_reading(folder, first, target="onnx", adapter=names[0])
    return most


def write_shared_graph(graph: Graph, example: Sample, path: Path, inputs: Sequence[str]) -> None:
    """Write a graph that takes the tensors of an adapter as inputs, and has those of its own where none is given."""
    tensors = adapter_tensors(graph)
    program = traced_shared(graph, example)
    write_onnx(program, path, inputs=[*inputs, *tensors], outputs=graph.output_names, defaults=tensors)
    check_onnx(path)


def adapter_run(session: Any, file: Path) -> Run:
    """Return what runs samples in a session with the adapter of a file."""
    adapter = read_adapter(file)
    return lambda sample: run_onnx(session, sample.inputs, adapter)


def adapter_names(sources: Sequence[Path]) -> list[str]:
    """Return a name for each folder: its own, with the one above it where that is not enough.

    >>> adapter_names([Path("runs/mail"), Path("runs/news/adapter")])
    ['mail', 'adapter']
    >>> adapter_names([Path("a/run"), Path("b/run")])
    ['a_run', 'b_run']
    """
    short = [plain_name(source.resolve().name) for source in sources]
    names = short if len(set(short)) == len(short) else [plain_name("_".join(source.parts[-2:])) for source in sources]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise AdapterError(f"two folders are called {repeated}; give them different names")
    for name in names:
        check_name(name, what="source")
    return names


def check_alike(source: Path, predictor: Predictor, graph: Graph, first: Predictor, first_graph: Graph) -> None:
    """Raise AdapterError unless an adapter fits the graph and the tokenizer of the first one."""
    own_tokenizer, tokenizer = (backend_of(found.tokenizer).to_str() for found in (predictor, first))
    facts = {
        "problem": predictor.problem.name == first.problem.name,
        "reading of long documents": reading_of(predictor) == reading_of(first),
        "tokenizer": own_tokenizer == tokenizer,
        "weights of the backbone": _same_backbone(graph, first_graph),
    }
    tensors = _other_tensors(adapter_tensors(graph), adapter_tensors(first_graph))
    differing = [name for name, is_alike in facts.items() if not is_alike] + tensors
    if differing:
        raise AdapterError(
            f"{source} does not fit the graph of the first adapter: other {cut(', '.join(differing), 200)}; one graph "
            "is shared by adapters of one method with the same options, backbone, tokenizer and number of labels"
        )


def _other_tensors(own: Inputs, first: Inputs) -> list[str]:
    shapes, wanted = ({name: tuple(tensor.shape) for name, tensor in found.items()} for found in (own, first))
    return [name for name in {**wanted, **shapes} if shapes.get(name) != wanted.get(name)]


def _same_backbone(graph: Graph, first: Graph) -> bool:
    """Compare all frozen tensors: another checkpoint of the same shape would answer, and wrongly.

    The heads that trained ones stand in for are left out: they are random where the checkpoint has none.
    """
    if graph is first:
        return True
    own, others = (_frozen(one) for one in (graph, first))
    return own.keys() == others.keys() and all(own[name].equal(others[name]) for name in own)


def _frozen(graph: Graph) -> Inputs:
    adapter = adapter_tensors(graph)
    return {
        name: tensor
        for name, tensor in graph.state_dict().items()
        if name not in adapter and ".original_module." not in name
    }
