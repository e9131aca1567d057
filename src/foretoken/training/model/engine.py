"""The attention engine and the packing that a recipe or a command asks for, put into force."""

from __future__ import annotations

import logging

import torch

from foretoken.attention.attend import NAMES, describe, use_engine, use_packing
from foretoken.errors import no_such
from foretoken.options import Errors

log = logging.getLogger(__name__)


def engine_errors(name: str, key: str = "training.attention_engine") -> Errors:
    """Return one line if there is no such attention engine."""
    return [] if name in NAMES else [f"{key}: {no_such('engine', name, NAMES)}"]


def use_attention(engine: str | None, packing: bool | None) -> None:
    """Choose the engine and the packing of this process, and say which it is; None leaves a choice to the device."""
    use_engine(engine)
    use_packing(packing)
    log.info(describe("cuda" if torch.cuda.is_available() else "cpu"))
