"""What a backbone family declares: where the sites are. It knows no method.

Shapes: B batch, N text tokens, P rows in front of the text, D model width, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from foretoken.errors import BackboneError


class Branch(Protocol):
    """Extra score columns for one attention layer: what the tuner hands to a backbone's attention."""

    def scores(self, query: Tensor, scale: float) -> Tensor | None:
        """(B, H, N, K) queries -> (B, H, N, X) scaled scores, or None for no columns."""

    def combine(self, out: Tensor, probabilities: Tensor | None, query: Tensor) -> Tensor:
        """Attention output and the columns' probabilities -> new output."""


@dataclass(frozen=True)
class Backbone:
    """Where the sites of one family are. Paths are relative to the body (``model.base_model``).

    Attributes:
        model_types: the values of ``config.model_type`` that it covers.
        layers: path of the ModuleList of layers.
        attention: path of the self-attention module within a layer.
        entry: names of the module whose output enters the stack, the first that exists; the last is the embeddings.
        stack: path of the module whose output still carries the rows in front.
        heads: names of the modules that a task adds and that are trained and saved, as far as a model has them.
        pooled_heads: model classes (by ending) whose pooler belongs to the head.
        projections: names of the query and value projections, LoRA's usual targets.
        dimensions: config -> the numbers that methods need.
        extend_inputs: the body's keyword arguments and the rows' (B, P) mask -> arguments that allow for the rows.
        attach_attention: (body, attention modules): makes the modules ask their branch.
        detach_attention: undoes it.
    """

    model_types: tuple[str, ...]
    layers: str
    attention: str
    entry: tuple[str, ...]
    stack: str
    heads: tuple[str, ...]
    pooled_heads: tuple[str, ...]
    projections: tuple[str, ...]
    dimensions: Callable[[Any], Mapping[str, int]]
    extend_inputs: Callable[[dict[str, Any], Tensor], dict[str, Any]]
    attach_attention: Callable[[nn.Module, list[nn.Module]], None]
    detach_attention: Callable[[nn.Module, list[nn.Module]], None]

    def entry_module(self, body: nn.Module) -> nn.Module:
        """Return the module whose output enters the stack."""
        names = dict(body.named_children())
        return next(names[name] for name in self.entry if name in names)

    def embeddings_module(self, body: nn.Module) -> nn.Module:
        """Return the module that turns token ids into vectors."""
        return body.get_submodule(self.entry[-1])

    def layer_modules(self, body: nn.Module) -> list[nn.Module]:
        """Return the layers in order."""
        return list(body.get_submodule(self.layers).children())

    def attention_modules(self, body: nn.Module) -> list[nn.Module]:
        """Return the self-attention modules in order."""
        return [layer.get_submodule(self.attention) for layer in self.layer_modules(body)]

    def head_names(self, model: nn.Module, body: nn.Module) -> list[str]:
        """Return the names of the head modules that this model has."""
        if model is body:
            return []
        names = [name for name in self.heads if isinstance(getattr(model, name, None), nn.Module)]
        if type(model).__name__.endswith(self.pooled_heads) and getattr(body, "pooler", None) is not None:
            names.append("pooler")
        return names


def extend_mask(mask: Tensor, row_mask: Tensor) -> Tensor:
    """Put the rows' (B, P) mask in front of a (B, N) mask, or of a (B, 1, N, N) mask in both directions.

    Raises:
        BackboneError: the mask has another number of dimensions.
    """
    if mask.dim() == 2:
        return torch.cat([row_mask.to(mask.dtype), mask], dim=1)
    if mask.dim() != 4:
        raise BackboneError(
            f"an attention mask of shape {tuple(mask.shape)} cannot be extended; pass one of shape (batch, tokens)"
        )
    seen = torch.zeros_like(row_mask, dtype=mask.dtype)
    seen = row_mask if mask.dtype == torch.bool else seen.masked_fill(~row_mask, torch.finfo(mask.dtype).min)
    best = mask.amax(dim=-2, keepdim=True) if mask.dtype != torch.bool else mask.any(dim=-2, keepdim=True)
    rows = row_mask.shape[1]
    queries = torch.cat([best.expand(-1, -1, rows, -1), mask], dim=-2)
    front = seen[:, None, None].expand(-1, queries.shape[1], queries.shape[2], -1)
    return torch.cat([front, queries], dim=-1)


def extend_text_mask(kwargs: dict[str, Any], row_mask: Tensor) -> dict[str, Any]:
    """Extend ``attention_mask``; without one, make one only where some rows are hidden."""
    mask = kwargs.get("attention_mask")
    if mask is None:
        tokens = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs["inputs_embeds"]
        mask = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
    return {**kwargs, "attention_mask": extend_mask(mask, row_mask)}
