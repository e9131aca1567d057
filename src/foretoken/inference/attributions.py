"""What each token of a row adds to an output: integrated gradients by captum, and the weights of a trained pool.

Shapes: B rows, N tokens, D model width, C outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretoken.backbones.pooling import ATTENTION, token_weights
from foretoken.errors import BackboneError, ConfigError
from foretoken.extras import missing
from foretoken.inference.predictor import Predictor
from foretoken.training.tokens.encode import TokenRow
from foretoken.training.tokens.padding import PaddingCollator
from foretoken.tuner.forward.dimensions import body_of, embedding_of, inner_of
from foretoken.tuner.heads import logits_and_summaries, logits_of_summaries, mean_of_rows, pool_of, row_summaries

log = logging.getLogger(__name__)
Scores: TypeAlias = NDArray[np.float64]
TOLERANCE = 0.01  # of the sum of the scores' sizes, that the scores may leave unexplained
_FEWEST_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """What is explained, how, and what it may cost.

    Attributes:
        label: in the place of the answer.
        by: what is scored: words, or passages; None: words of short documents, passages of others.
        top: how many of them are told, those with the largest scores.
        tokens_per_batch: of one forward and backward pass; a row of more is a pass of its own.
        most_steps: points on the path between a document and its baseline.
        run: calls each pass.
    """

    label: str | None = None
    by: Literal["words", "passages"] | None = None
    top: int = 10
    tokens_per_batch: int = 4096
    most_steps: int = 256
    run: Callable[[Callable[[], Any]], Any] = lambda function: function()


@dataclass
class LookedUp:
    """The embeddings of a row's tokens, wherever a model looks them up.

    Attributes:
        ids: of the row (1, N).
        values: (B, N, D) in the place of those of the pass to come; None for the model's own.
        table: the module that has looked them up.
    """

    ids: Tensor
    values: Tensor | None = None
    table: nn.Module | None = None

    def after(self, table: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Put the values in their place; the decoder of an encoder-decoder reads the text moved by one token."""
        ids, length = args[0], self.ids.shape[1]
        for moved in (0, 1):
            if ids.dim() == 2 and torch.equal(ids[0, moved:length], self.ids[0, : length - moved]):
                self.table = self.table or table
                if self.values is not None:
                    return torch.cat([output[:, :moved], self.values[:, : length - moved], output[:, length:]], dim=1)
        return output


@contextmanager
def looked_up(model: nn.Module, ids: Tensor) -> Iterator[LookedUp]:
    """Yield the embeddings that a model looks up of a row (1, N), before any other hook sees them.

    The token ids stay, for all else that a model finds by them: positions, the end of a text, a method's own rows.
    """
    weight, found = embedding_of(inner_of(model)).weight, LookedUp(ids)
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding) and module.weight is weight]
    handles = [table.register_forward_hook(found.after, prepend=True) for table in tables]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class ReadDocument:
    """A document in one or more rows, and what the model's head keeps of each.

    Attributes:
        predictor: what reads it.
        rows: its tokens.
        kept: (S, K) summaries of the rows; of a head of transformers' own, which reads each for itself, logits (S, C).
    """

    predictor: Predictor
    rows: Sequence[TokenRow]
    kept: Tensor

    @classmethod
    def of(cls, predictor: Predictor, rows: Sequence[TokenRow], options: ExplainOptions) -> ReadDocument:
        """Read a document, a few rows at a time."""
        size = max(1, options.tokens_per_batch // max(len(row["input_ids"]) for row in rows))

        @torch.no_grad()
        def kept(some: Sequence[TokenRow]) -> Tensor:
            logits, summaries = logits_and_summaries(predictor.model, _inputs(predictor, some))
            return logits if summaries is None else summaries

        parts = [rows[at : at + size] for at in range(0, len(rows), size)]
        return cls(predictor, rows, torch.cat([options.run(partial(kept, part)) for part in parts]))

    @property
    def pool(self) -> str | None:
        """What the head reads of the document; None for a head of transformers' own."""
        return pool_of(self.predictor.model)

    def logits(self, kept: Tensor, owner: Tensor) -> Tensor:
        """Return the logits (B, C) of documents whose rows have kept this."""
        model = self.predictor.model
        return mean_of_rows(kept, owner) if self.pool is None else logits_of_summaries(model, kept, owner)

    @torch.no_grad()
    def shares(self, target: int) -> Scores:
        """Return what the logit loses without each row (S,); of a head that reads one row, the rows' parts of it.

        One row alone has all of it.
        """
        count = len(self.rows)
        if self.pool is None or count == 1:
            return (self.kept[:, target] / count if self.pool is None else self._whole(target)).double().cpu().numpy()
        one = torch.zeros(count - 1, dtype=torch.long)
        left = (torch.cat([self.kept[:row], self.kept[row + 1 :]]) for row in range(count))
        without = torch.cat([self.logits(rows, one)[:, target] for rows in left])
        return (self._whole(target) - without).double().cpu().numpy()

    def _whole(self, target: int) -> Tensor:
        return self.logits(self.kept, torch.zeros(len(self.rows), dtype=torch.long))[:, target]

    def with_row(self, number: int, inputs: Mapping[str, Tensor], target: int) -> Tensor:
        """Return the document's logit (n,) with each of n rows in the place of one of its own."""
        model, count = self.predictor.model, len(self.rows)
        if self.pool is None:
            logits: Tensor = model(**inputs).logits
            return logits[:, target] / count
        rows = row_summaries(model, inputs)
        copies = self.kept.expand(len(rows), *self.kept.shape).clone()
        copies[:, number] = rows
        return self.logits(copies.flatten(0, 1), torch.arange(len(rows)).repeat_interleave(count))[:, target]

    def pooling_weights(self, options: ExplainOptions) -> list[Scores] | None:
        """Return the weights by which the head pools the tokens of each row, 1 in all; None where none are trained."""
        if self.pool != "attention":
            return None
        of_rows = self.kept[:, -1].softmax(dim=0).double().cpu().numpy()
        each = [_token_weights(self.predictor, row, options) for row in self.rows]
        return [share * weights for share, weights in zip(of_rows, each, strict=True)]


def integrated_gradients(
    document: ReadDocument, number: int, target: int, is_text: Sequence[bool], options: ExplainOptions
) -> tuple[Scores, float]:
    """Return what each token of a row adds to the document's logit (N,), and what their sum leaves unexplained.

    The baseline is the row with the mask token in the place of every token of the text; where there is none, or its
    embedding is 0, the padding token, or the end token. The scores add up to the difference between the two logits;
    there are more steps until they do.

    Raises:
        ConfigError: captum is not installed.
        BackboneError: the model's token embeddings were not found.
    """
    predictor = document.predictor
    inputs = _inputs(predictor, [document.rows[number]])
    with looked_up(predictor.model, inputs["input_ids"]) as embeddings:

        def logit(values: Tensor | None) -> Tensor:
            embeddings.values, count = values, 1 if values is None else len(values)
            batch = {name: tensor.expand(count, -1).contiguous() for name, tensor in inputs.items()}
            return document.with_row(number, batch, target)

        @torch.no_grad()
        def ends() -> tuple[Tensor, Tensor, float]:
            known = logit(None)
            values, baseline = _ends(predictor, embeddings, is_text)
            return values, baseline, float(known) - float(logit(baseline))

        values, baseline, difference = options.run(ends)
        method, steps = _method(logit, options), _FEWEST_STEPS
        size = max(1, options.tokens_per_batch // values.shape[1])
        while True:
            found = method.attribute(values, baselines=baseline, n_steps=steps, internal_batch_size=size)
            scores = found.sum(dim=-1)[0].double().cpu().numpy()
            delta, allowed = difference - float(scores.sum()), TOLERANCE * float(np.abs(scores).sum())
            if abs(delta) <= allowed or 2 * steps > options.most_steps:
                break
            steps *= 2
    if abs(delta) > allowed:
        log.warning("the scores of a document leave %.3g of its logit unexplained; take them as rough", delta)
    return scores, delta


def _ends(predictor: Predictor, embeddings: LookedUp, is_text: Sequence[bool]) -> tuple[Tensor, Tensor]:
    """Return the embeddings of a row, and those of its baseline."""
    if (table := embeddings.table) is None:
        kind = type(inner_of(predictor.model)).__name__
        raise BackboneError(f"{kind}: its token embeddings were not found, so its answers cannot be explained")
    ids, tokenizer = embeddings.ids, predictor.tokenizer
    hides = torch.tensor([list(is_text)], device=ids.device)
    for blank in (tokenizer.mask_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id):
        if blank is not None:
            baseline = table(torch.where(hides, blank, ids))
            if bool(baseline[hides].any()):  # all multiples of an embedding are one to a norm: none starts at 0
                break
    return table(ids), baseline


def _method(logit: Callable[[Tensor], Tensor], options: ExplainOptions) -> Any:
    """Return captum's integrated gradients, each pass called as the options say."""
    try:
        from captum.attr import IntegratedGradients
    except ModuleNotFoundError as error:
        raise ConfigError(missing("explaining a model's answers", "captum", "explain")) from error
    method = IntegratedGradients(logit)
    one_pass = method.gradient_func
    method.gradient_func = lambda **inputs: options.run(partial(one_pass, **inputs))
    return method


def _token_weights(predictor: Predictor, row: TokenRow, options: ExplainOptions) -> Scores:
    """Return the weights (N,) by which the pool ``attention`` reads the tokens of a row, 1 in all."""
    body, seen = body_of(inner_of(predictor.model)), list[Tensor]()
    handle = body.get_submodule(ATTENTION).register_forward_hook(lambda module, args, scores: seen.append(scores))
    try:
        ReadDocument.of(predictor, [row], options)
    finally:
        handle.remove()
    weights = token_weights(seen[0], torch.ones_like(seen[0][..., 0], dtype=torch.bool))
    return weights[0, :, 0].double().cpu().numpy()


def _inputs(predictor: Predictor, rows: Sequence[TokenRow]) -> dict[str, Tensor]:
    batch = PaddingCollator(int(predictor.tokenizer.pad_token_id))(rows)
    device = next(predictor.model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}
