"""What a run was begun with, in a few characters each, so that it does not go on with other data or another model."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from foretoken.errors import RecipeError

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)
_READ = 2**16  # numbers of a weight that are read: its every part changes when a model is trained further
_ROWS = 1000  # that are read at once


def of_data(splits: Mapping[str, Dataset]) -> dict[str, str]:
    """Return how many rows every split has, and a digest of their content."""
    return {f"data.{name}": f"{len(split)} rows, {_of_rows(split)}" for name, split in splits.items()}


def of_model(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Return digests of a model's weights, evenly spread ones of the larger, and of how its tokenizer splits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(_some_bytes(tensor))
    return {"model": _short(digest.hexdigest()), "tokenizer": _of_tokenizer(tokenizer)}


def refuse_changes(folder: Path, before: Mapping[str, object] | None, now: Mapping[str, str], *, accept: bool) -> None:
    """Refuse to work on a run with something else than it was begun with, or say it where that is accepted.

    Args:
        folder: of the run.
        before: the fingerprint in its record; None in records of earlier versions.
        now: what there is now.
        accept: go on nevertheless.

    Raises:
        RecipeError: something changed.
    """
    found = differing(before or {}, now)
    if found and not accept:
        head = f"{folder} was begun with something else; put it back, or go on with --accept-changed"
        raise RecipeError(f"{head}, or begin anew with --restart", found)
    for line in found:
        log.warning("going on though it changed: %s", line)


def differing(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return one line for everything that is no longer as it was; what one of the two does not know is passed over.

    >>> differing({"data.train": "96 rows, 0f", "torch": "2.12"}, {"data.train": "97 rows, a1", "torch": "2.12"})
    ['data.train: 96 rows, 0f when the run began, 97 rows, a1 now']
    """
    return [
        f"{key}: {before[key]} when the run began, {value} now"
        for key, value in now.items()
        if key in before and before[key] != value
    ]


def _of_rows(split: Dataset) -> str:
    digest = hashlib.sha256()
    columns = split.with_format("arrow")
    for start in range(0, len(split), _ROWS):
        batch = columns[start : start + _ROWS]
        digest.update(json.dumps(batch.to_pydict(), sort_keys=True, default=str).encode("utf-8", "surrogatepass"))
    return _short(digest.hexdigest())


def _some_bytes(x: Tensor) -> bytes:
    if type(x) is not Tensor or x.is_meta or not x.numel():  # quantised weights have types of their own
        return b""
    flat = x.detach().flatten()
    some = flat[:: max(1, len(flat) // _READ)].cpu().contiguous()
    return some.view(torch.uint8).numpy().tobytes()


def _of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = json.dumps(tokenizer.get_vocab(), sort_keys=True) if backend is None else backend.to_str()
    return _short(hashlib.sha256(text.encode()).hexdigest())


def _short(digest: str) -> str:
    return digest[:16]
