"""Saved adapters as files: what a folder, or a repository of the hub, holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from foretoken.errors import AdapterError
from foretoken.files import PathLike, refuse_pickled_adapter

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"


def read_config(source: PathLike) -> dict[str, Any]:
    """Return the fields of a saved adapter's config.

    Raises:
        AdapterError: there is no adapter, or its config cannot be read.
    """
    file = find(source, CONFIG)
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AdapterError(f"{file} is not JSON ({error}); save the adapter again") from error
    if not isinstance(fields, dict) or "peft_type" not in fields:
        raise AdapterError(f"{file} has no peft_type; it is not the config of an adapter")
    return fields


def read_tensors(source: PathLike) -> dict[str, Tensor]:
    """Return a saved adapter's tensors, on the CPU.

    Raises:
        AdapterError: there are none, or they are a pickle or damaged.
    """
    file = find(source, TENSORS)
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{file} cannot be read ({error}); save the adapter again") from error


def find(source: PathLike, name: str) -> Path:
    """Return a file of a folder, or of a repository of the hub.

    Raises:
        AdapterError: there is no such file, or a pickle in place of it.
    """
    folder = Path(source)
    if (folder / name).is_file():
        return folder / name
    if name == TENSORS:
        refuse_pickled_adapter(folder)
    if folder.is_dir():
        raise AdapterError(f"{folder} has no {name}; expected the folder of a saved adapter")
    try:
        return Path(hf_hub_download(str(source), name))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AdapterError(f"no adapter at {str(source)!r}: no such folder, and not on the hub ({reason})") from error
