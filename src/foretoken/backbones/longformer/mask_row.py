"""One row of a mask in place of all: transformers makes (B, 1, N, N) for Longformer and LED, and reads its first row.

At 16,384 tokens the rows that nobody reads are a gigabyte for every document of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor
from transformers.models.led import modeling_led
from transformers.models.longformer import modeling_longformer

from foretoken.backbones.module_value import Keywords

Make = Callable[..., Tensor]


def make_one_row() -> None:
    """Let both files' functions make the row that is read; every model gets the values that it got before."""
    replace(modeling_longformer, "create_bidirectional_mask", of_one_query)
    replace(modeling_led, "_prepare_4d_attention_mask_inverted", lambda given: {"tgt_len": 1})


def of_one_query(given: Keywords) -> Keywords:
    """Return the states of the queries, (B, N, D), without all but one; the keys are counted by their mask."""
    states = given.get("inputs_embeds")
    return {} if states is None or given.get("attention_mask") is None else {"inputs_embeds": states[:, :1]}


def replace(file: ModuleType, name: str, shortened: Callable[[Keywords], Keywords]) -> None:
    """Let a function of a file be called with some arguments changed; once, and not where it is missing."""
    whole: Make | None = getattr(file, name, None)
    if whole is None or whole.__module__ == __name__:
        return

    def one_row(*args: Any, **kwargs: Any) -> Tensor:
        return whole(*args, **kwargs | shortened(kwargs))

    one_row.__wrapped__ = whole  # type: ignore[attr-defined]
    setattr(file, name, one_row)
