"""The graph of a trained model: token ids in, logits and probabilities out, for any batch and length.

Shapes: B documents or chunks, N tokens, C labels, K numbers that are kept of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call
from transformers import PreTrainedTokenizerBase

from foretoken.attention.choose import unpacked
from foretoken.data.problems import Answer
from foretoken.errors import BackboneError, cut
from foretoken.inference.predictor import Predictor
from foretoken.machine.tracing import one_graph
from foretoken.metrics.regression import TargetScale
from foretoken.metrics.scaling import Link, Scaling
from foretoken.training.problems.regression import Regression
from foretoken.tuner.checks import ADAPTERS_NAME
from foretoken.tuner.fuse import prefix_known
from foretoken.tuner.heads import logits_and_summaries, own_head, pool_of

Inputs = dict[str, Tensor]
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
SCALING = ("scaling_weight", "scaling_bias")
# documents and tokens: of the example, and of what the graph is checked with. The example has several blocks of a
# window's attention: PyTorch takes a single one for the number of all lengths
_SIZES = (
    (2, 300),
    (1, 7),
    (3, 29),
    (1, 600),
)


class Graph(nn.Module):
    """What is exported: the model with its head, and the recalibrated probabilities where they are of whole texts.

    Args:
        model: the adapted model.
        scaling: of the probabilities, or of the logits where these are numbers; None: as the model has them.
        has_probabilities: whether they are an output beside the logits.
        link: what makes probabilities of logits: a softmax of them all, or a sigmoid of each.
    """

    def __init__(
        self, model: Any, scaling: Scaling | TargetScale | None, *, has_probabilities: bool, link: Link = "softmax"
    ) -> None:
        super().__init__()
        self.model = model
        self.has_probabilities = has_probabilities
        self.has_numbers = isinstance(scaling, TargetScale)
        self.pool = pool_of(model)
        self.link = link
        weight, bias = _line(scaling)
        for name, values in zip(SCALING, (weight, bias), strict=True):
            # one number for each output, also of a temperature: adapters that share a graph may differ in it
            kind = torch.float64 if self.has_numbers else torch.float32  # numbers may be large, and differ by little
            self.register_buffer(name, torch.tensor(values, dtype=kind).expand(model.config.num_labels).clone())

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of what :meth:`forward` returns."""
        names = ("logits", "probabilities") if self.has_probabilities else ("logits",)
        return names if self.pool is None else (*names, "summaries")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        """(B, N) -> logits (B, C), (B, N, C) of tags, or numbers in the units of the data; and probabilities (B, C).

        With a head of ours also what its pool keeps of each row, (B, K).
        """
        more = {} if token_type_ids is None else {TYPES: token_type_ids}
        logits, rows = logits_and_summaries(self.model, {IDS: input_ids, MASK: attention_mask, **more})
        last = () if rows is None else (rows.float(),)
        return *self._scaled(logits.float()), *last

    def _scaled(self, logits: Any) -> tuple[Tensor, ...]:
        if self.has_numbers:
            return (logits.double() * self.scaling_weight + self.scaling_bias,)
        if not self.has_probabilities:
            return (logits,)
        if self.link == "sigmoid":
            return logits, (logits * self.scaling_weight + self.scaling_bias).sigmoid()
        scaled = logits.log_softmax(dim=-1) * self.scaling_weight + self.scaling_bias
        return logits, scaled.softmax(dim=-1)


class SharedGraph(nn.Module):
    """The graph with everything that belongs to an adapter as an input: one graph for many adapters."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.whole = graph  # fx has a `graph` of its own

    def forward(self, inputs: Inputs, adapter: Inputs) -> Any:
        """Return what the graph yields with an adapter's tensors in the place of its own."""
        return functional_call(self.whole, adapter, kwargs=inputs)


def make_graph(predictor: Predictor, *, with_words: bool | None = None) -> Graph:
    """Return the graph of a loaded model; logits of tags, and beside words, are left to whoever reads them.

    Args:
        predictor: the model.
        with_words: whether it is of some adapter that has words; None: whether this one has.
    """
    problem = predictor.problem
    has_words = predictor.words is not None if with_words is None else with_words
    whole = problem.has_probabilities and not has_words
    scaling = problem.targets if isinstance(problem, Regression) else predictor.scaling
    link: Link = "sigmoid" if problem.facts.answer is Answer.LABELS else "softmax"
    graph = Graph(predictor.model, scaling, has_probabilities=whole, link=link)
    return graph.cpu().eval().requires_grad_(False)


def adapter_tensors(graph: Graph) -> Inputs:
    """Return what belongs to the adapter: its own weights, the head's, and the scaling."""
    own = {name: tensor for name, tensor in graph.state_dict().items() if ADAPTERS_NAME.search(f".{name}")}
    is_scaled = graph.has_probabilities or graph.has_numbers
    return own | ({name: getattr(graph, name) for name in SCALING} if is_scaled else {})


def head_arrays(graph: Graph) -> dict[str, np.ndarray]:
    """Return the weights of the head as `read.py` names them; none of transformers' own heads."""
    head = own_head(graph.model)
    if head is None:
        return {}
    layers = {"": head.get_submodule(head.last)} | ({} if head.dense is None else {"dense.": head.dense})
    return {f"{at}{name}": getattr(layer, name).numpy() for at, layer in layers.items() for name in ("weight", "bias")}


def _line(scaling: Scaling | TargetScale | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return what outputs are multiplied by, and what is added then."""
    if isinstance(scaling, TargetScale):
        return scaling.std, scaling.mean
    return ((1.0,), (0.0,)) if scaling is None else (scaling.weight, scaling.bias)


@dataclass(frozen=True)
class Sample:
    """Documents of random tokens, to make a graph from and to check it with."""

    inputs: Inputs

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The inputs in the order of the graph's arguments."""
        return tuple(self.inputs.values())


def samples(predictor: Predictor) -> Iterator[Sample]:
    """Yield documents of several numbers and lengths; in each batch but a single document's one is padded."""
    tokenizer, generator = predictor.tokenizer, torch.Generator().manual_seed(0)
    plain = plain_tokens(tokenizer)
    for size, length in _SIZES:
        length = min(length, predictor.max_length)
        ids = plain[torch.randint(len(plain), (size, length), generator=generator)]
        if tokenizer.cls_token_id is not None:
            ids[:, 0] = tokenizer.cls_token_id
        mask = torch.ones_like(ids)
        if size > 1:
            ids[1, length // 2 :], mask[1, length // 2 :] = int(tokenizer.pad_token_id), 0
        inputs = {IDS: ids, MASK: mask}
        yield Sample(inputs | ({TYPES: torch.zeros_like(ids)} if reads_types(predictor) else {}))


def plain_tokens(tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Return some tokens of the vocabulary that are not special ones."""
    special = set(tokenizer.all_special_ids)
    return torch.tensor([index for index in range(min(len(tokenizer), 1000)) if index not in special])


def reads_types(predictor: Predictor) -> bool:
    """Tell whether the model is told which text of a pair a token is of."""
    return predictor.problem.pairs and TYPES in predictor.tokenizer.model_input_names


@torch.no_grad()
def traced(graph: Graph, sample: Sample) -> ExportedProgram:
    """Return the program of a graph, for any number and length of documents.

    Raises:
        BackboneError: PyTorch cannot make one graph of this model for all lengths.
    """
    with _ready(graph, sample):
        return _export(graph, sample.arguments, tuple(_any_size() for _ in sample.inputs))


@torch.no_grad()
def traced_shared(graph: Graph, sample: Sample) -> ExportedProgram:
    """Return the program of a graph whose second argument is the tensors of an adapter.

    Raises:
        BackboneError: as in :func:`traced`.
    """
    tensors = adapter_tensors(graph)
    sizes = ({name: _any_size() for name in sample.inputs}, dict.fromkeys(tensors))
    with _ready(graph, sample, fold=False):
        return _export(SharedGraph(graph), (sample.inputs, tensors), sizes)


@contextmanager
def _ready(graph: Graph, sample: Sample, *, fold: bool = True) -> Iterator[None]:
    """Compute padded, as a graph does, and run once: what a family counts in its documents is counted by this pass."""
    if getattr(graph.model.config, "attention_type", None) == "block_sparse":  # a graph would hold one of its two ways
        raise BackboneError(
            "PyTorch makes no graph of this model for documents of every length: its attention is sparse over long "
            "documents and full over short ones"
        )
    with unpacked():
        graph(**sample.inputs)
        if not fold:
            yield
            return
        with prefix_known(graph.model, sample.inputs):
            yield


def _any_size() -> dict[int, Any]:
    return {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}


def _export(module: nn.Module, arguments: tuple[Any, ...], sizes: Any) -> ExportedProgram:
    try:
        with one_graph():
            return torch.export.export(module, arguments, dynamic_shapes=sizes, strict=False)
    except Exception as error:  # torch raises errors of many kinds, some of them pages long
        raise BackboneError(
            f"PyTorch makes no graph of this model for documents of every length: {first_cause(error)}"
        ) from error


def first_cause(error: BaseException) -> str:
    """Return the first line of what an error came from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return cut(str(error).strip().split("\n")[0], 200)
