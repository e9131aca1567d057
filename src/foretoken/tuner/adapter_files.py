"""The files of saved adapters, in a folder or in a repository of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foretoken.errors import AdapterError, cut
from foretoken.files import PathLike
from foretoken.saved_files import read_object, refuse_pickles
from foretoken.tuner.checks import is_finite

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"


def read_config(source: PathLike) -> dict[str, Any]:
    """Return the fields of a saved adapter's config.

    Raises:
        AdapterError: there is no adapter, or its config cannot be read.
    """
    file = find(source, CONFIG)
    fields = read_object(file)
    if not isinstance(fields.get("peft_type"), str):
        raise AdapterError(f"{file} has no peft_type; it is not the config of an adapter")
    return fields


def read_tensors(source: PathLike) -> dict[str, Tensor]:
    """Return a saved adapter's tensors, on the CPU.

    Raises:
        AdapterError: there are no tensors, the file is a pickle or damaged, or a number is not finite.
    """
    file = find(source, TENSORS)
    opened = open_tensors(file)
    tensors: dict[str, Tensor] = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not is_finite(tensor):
            raise AdapterError(f"{file}: {cut(name, 150)} does not hold finite numbers; train the adapter again")
    return tensors


def open_tensors(file: Path) -> Any:
    """Open a file of tensors, which are read one by one when they are needed.

    Raises:
        AdapterError: the file is damaged.
    """
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        reason = cut(" ".join(str(error).split()), 150)
        raise AdapterError(f"{file} is cut short or corrupt ({reason}); copy or train it again") from error


def find(source: PathLike, name: str) -> Path:
    """Return a file of a folder, or of a repository of the hub.

    Raises:
        AdapterError: there is no such file, or a pickle in place of it.
    """
    folder = Path(source)
    if (folder / name).is_file():
        return folder / name
    if name == TENSORS:
        refuse_pickles(folder)
    if folder.is_dir():
        raise AdapterError(f"{folder} has no {name}; expected the folder of a saved adapter")
    try:
        return Path(hf_hub_download(str(source), name))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AdapterError(f"no adapter at {str(source)!r}: no such folder, and not on the hub ({reason})") from error
