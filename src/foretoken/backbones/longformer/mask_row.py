"""One row of a mask instead of all: transformers makes (B, 1, N, N) for Longformer and LED, and reads its first row.

At 16,384 tokens the unused rows take a gigabyte for every document of a batch.
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
    """Patch the functions in both files so that they make only the row that is read; its values do not change."""
    replace(modeling_longformer, "create_bidirectional_mask", of_one_query)
    replace(modeling_led, "_prepare_4d_attention_mask_inverted", lambda given: {"tgt_len": 1})


def of_one_query(arguments: Keywords) -> Keywords:
    """Return the (B, 1, D) states of one query; the number of keys follows from their mask."""
    states = arguments.get("inputs_embeds")
    return {} if states is None or arguments.get("attention_mask") is None else {"inputs_embeds": states[:, :1]}


def replace(file: ModuleType, name: str, shortened: Callable[[Keywords], Keywords]) -> None:
    """Patch a function of a file to be called with changed arguments; a missing or patched function stays."""
    whole: Make | None = getattr(file, name, None)
    if whole is None or whole.__module__ == __name__:
        return

    def one_row(*args: Any, **kwargs: Any) -> Tensor:
        return whole(*args, **kwargs | shortened(kwargs))

    one_row.__wrapped__ = whole  # type: ignore[attr-defined]
    setattr(file, name, one_row)
