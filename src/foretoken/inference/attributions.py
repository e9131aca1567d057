"""What each token of a row adds to an output: integrated gradients by captum, and the weights of a trained pool.

Shapes: B rows, N tokens, D model width, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretoken.backbones.pooling import ATTENTION, POOLING, token_weights
from foretoken.errors import BackboneError, ConfigError
from foretoken.extras import missing
from foretoken.inference.predictor import Predictor
from foretoken.training.tokens.encode import PaddingCollator, TokenRow
from foretoken.training.tokens.places import SPECIAL
from foretoken.tuner.dimensions import body_of, embedding_of, inner_of

T = TypeVar("T")
Scores = NDArray[np.float64]
TOLERANCE = 0.01  # of the sum of the scores' sizes, that their sum may be beside the logit's difference
_FEWEST_STEPS = 16


class Run(Protocol):
    """Calls a function, now or when the thread that owns the processor gets to it."""

    def __call__(self, function: Callable[[], T], /) -> T:
        """Return what the function returns."""


def at_once(function: Callable[[], T], /) -> T:
    """Call a function."""
    return function()


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What attributions may cost.

    Attributes:
        tokens_per_batch: of one forward and backward pass; a row of more is a pass of its own.
        most_steps: points on the path between a document and its baseline.
        run: calls each pass.
    """

    tokens_per_batch: int = 4096
    most_steps: int = 256
    run: Run = at_once


class LookedUp:
    """While entered, stands where a model looks up the embeddings of a row's tokens, and puts others in their place.

    The token ids stay, for all else that a model finds by them: positions, the end of a text, a method's own rows. The
    decoder of an encoder-decoder reads a text once more, moved by one place.

    Attributes:
        ids: of the row (1, N).
        values: embeddings (B, N, D) of the pass to come; None for those of the model.
        table: the module that has looked up the row's embeddings.
    """

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        self.ids, self.values = ids, None
        self.table: nn.Module | None = None
        self._model, self._handles = model, list[Any]()

    def __enter__(self) -> LookedUp:
        """Hook the tables of the tokens' embeddings, before others see what they look up."""
        weight = embedding_of(inner_of(self._model)).weight
        tables = [item for item in self._model.modules() if isinstance(item, nn.Embedding) and item.weight is weight]
        self._handles = [table.register_forward_hook(self._after, prepend=True) for table in tables]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def embedded(self, ids: Tensor) -> Tensor:
        """Return the embeddings of token ids: (1, N) -> (1, N, D).

        Raises:
            BackboneError: the model has looked up none.
        """
        if self.table is None:
            raise BackboneError(
                f"{type(inner_of(self._model)).__name__}: its token embeddings were not found, so its answers cannot "
                "be explained"
            )
        return self.table(ids)

    def _after(self, table: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        ids, length = args[0], self.ids.shape[1]
        for moved in (0, 1):
            if ids.dim() == 2 and torch.equal(ids[0, moved:length], self.ids[0, : length - moved]):
                self.table = self.table or table
                if self.values is not None:
                    values = self.values[:, : length - moved]
                    return torch.cat([output[:, :moved], values, output[:, length:]], dim=1)
        return output


def integrated_gradients(
    predictor: Predictor, row: TokenRow, target: int, is_text: Sequence[bool], effort: Effort
) -> tuple[Scores, float]:
    """Return what each token of a row adds to a logit (N,), and what their sum leaves unexplained.

    The baseline is the row with the mask token in the place of every token of the text; where there is none, or its
    embedding is 0, the padding token, or the end token. The scores add up to the difference between the two logits; there are more steps until they do.

    Raises:
        ConfigError: captum is not installed.
        BackboneError: the model's token embeddings were not found.
    """
    gradients = _integrated_gradients()
    inputs = _inputs(predictor, [row])
    ids, run, most = inputs["input_ids"], effort.run, effort.tokens_per_batch
    names = predictor.tokenizer
    blanks = [names.mask_token_id, names.pad_token_id, names.eos_token_id]
    with LookedUp(predictor.model, ids) as looked_up:

        def logit(values: Tensor | None) -> Tensor:
            looked_up.values, count = values, 1 if values is None else len(values)
            try:
                batch = {name: tensor.expand(count, -1).contiguous() for name, tensor in inputs.items()}
                return predictor.model(**batch).logits[:, target]
            finally:
                looked_up.values = None

        @torch.no_grad()
        def ends() -> tuple[Tensor, Tensor, float]:
            known, hides = logit(None), torch.tensor([list(is_text)], device=ids.device)
            values = looked_up.embedded(ids)
            for blank in [token for token in blanks if token is not None]:
                baseline = looked_up.embedded(torch.where(hides, blank, ids))
                if bool(baseline[hides].any()):  # all multiples of an embedding are one to a norm: none starts at 0
                    break
            return values, baseline, float(known) - float(logit(baseline))

        values, baseline, difference = run(ends)
        method, steps = gradients(logit), _FEWEST_STEPS
        one_pass = method.gradient_func
        method.gradient_func = lambda **given: run(partial(one_pass, **given))
        size = max(1, most // ids.shape[1])
        while True:
            found = method.attribute(values, baselines=baseline, n_steps=steps, internal_batch_size=size)
            scores = found.sum(dim=-1)[0].double().cpu().numpy()
            delta = difference - float(scores.sum())
            if abs(delta) <= TOLERANCE * np.abs(scores).sum() or 2 * steps > effort.most_steps:
                return scores, delta
            steps *= 2


def _integrated_gradients() -> type[Any]:
    try:
        from captum.attr import IntegratedGradients
    except ModuleNotFoundError as error:
        raise ConfigError(missing("explaining a model's answers", "captum", "explain")) from error
    return IntegratedGradients


def pools_by_weight(predictor: Predictor) -> bool:
    """Tell whether the head pools tokens by trained weights."""
    pooling = POOLING.get(body_of(inner_of(predictor.model)))
    return pooling is not None and pooling.pool == "attention"


def pooling_weights(predictor: Predictor, row: TokenRow, effort: Effort) -> Scores:
    """Return the weights (N,) by which a head pools the tokens of a row; they add up to 1."""
    seen: list[Tensor] = []
    scorer = body_of(inner_of(predictor.model)).get_submodule(ATTENTION)
    handle = scorer.register_forward_hook(lambda module, args, scores: seen.append(scores))
    try:
        output_logits(predictor, [row], effort)
    finally:
        handle.remove()
    (scores,) = seen
    weights = token_weights(scores, torch.ones_like(scores[..., 0], dtype=torch.bool))
    return weights[0, :, 0].double().cpu().numpy()


def output_logits(predictor: Predictor, rows: Sequence[TokenRow], effort: Effort) -> Scores:
    """Return the logits (B, C) of rows, each for itself."""
    size = max(1, effort.tokens_per_batch // max(len(row["input_ids"]) for row in rows))

    @torch.no_grad()
    def of(some: Sequence[TokenRow]) -> Scores:
        return predictor.model(**_inputs(predictor, some)).logits.double().cpu().numpy()

    return np.concatenate([effort.run(partial(of, rows[at : at + size])) for at in range(0, len(rows), size)])


def spread(scores: Sequence[Scores], places: Sequence[Sequence[int]], count: int) -> Scores:
    """Return the scores of a document's tokens (count,) of those in its rows; a token in two rows has both.

    >>> spread([np.array([9.0, 1.0, 2.0]), np.array([9.0, 0.5])], [[-1, 0, 1], [-1, 1]], 2).tolist()
    [1.0, 2.5]
    """
    total = np.zeros(count + 1)
    for row, of_row in zip(scores, places, strict=True):
        np.add.at(total, [count if place == SPECIAL else place for place in of_row], row)
    return total[:count]


def _inputs(predictor: Predictor, rows: Sequence[TokenRow]) -> dict[str, Tensor]:
    batch = PaddingCollator(int(predictor.tokenizer.pad_token_id))(rows)
    device = next(predictor.model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}
