"""Files of saved adapters, models and runs, read without running code."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from foretoken.errors import AdapterError, cut, quoted
from foretoken.files import JsonObject, PathLike

CACHE_VARIABLE = "FORETOKEN_CACHE"
_CACHE_OFF = ("0", "off", "no", "false", "none")


def cache_folder() -> Path | None:
    """Return the folder of the cache: $FORETOKEN_CACHE, or ~/.cache/foretoken; None for no caching.

    >>> getfixture("monkeypatch").setenv("FORETOKEN_CACHE", "off")
    >>> cache_folder() is None
    True
    """
    named = os.environ.get(CACHE_VARIABLE, "")
    if named.strip().lower() in _CACHE_OFF:
        return None
    try:
        return Path(named or "~/.cache/foretoken").expanduser()
    except RuntimeError:  # a user without a home
        return None


def refuse_pickles(folder: PathLike) -> None:
    """Raise :class:`~foretoken.errors.AdapterError` if a folder has tensors only as a pickle.

    >>> folder = getfixture("tmp_path")
    >>> (folder / "adapter_model.bin").touch()
    >>> refuse_pickles(folder)
    Traceback (most recent call last):
    ...
    foretoken.errors.AdapterError: ...adapter_model.bin is a pickle, which can run code when it is loaded; ...
    """
    for stem, safe in (("adapter_model", "adapter_model"), ("pytorch_model", "model")):
        pickled = sorted(Path(folder).glob(f"{stem}*.bin*"))
        if pickled and not any(Path(folder).glob(f"{safe}*.safetensors*")):
            raise AdapterError(
                f"{pickled[0]} is a pickle, which can run code when it is loaded; "
                "save it as safetensors (save_pretrained does) and load that"
            )


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file's bytes.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while part := handle.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def read_object(path: PathLike) -> JsonObject:
    """Return the JSON object in a file of a saved adapter or model.

    Raises :class:`~foretoken.errors.AdapterError` when it cannot be read, or is not an object.

    >>> file = getfixture("tmp_path") / "adapter_config.json"
    >>> _ = file.write_text("[" * 100_000)
    >>> read_object(file)
    Traceback (most recent call last):
    ...
    foretoken.errors.AdapterError: ...adapter_config.json is cut short or corrupt (...); copy or save it again
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else cut(str(error), 100)
        raise AdapterError(f"{path} is cut short or corrupt ({reason}); copy or save it again") from error
    if not isinstance(values, dict):
        raise AdapterError(f"{path} holds {quoted(values)}; expected a JSON object")
    return values


def readable_object(path: PathLike) -> JsonObject | None:
    """Return the JSON object in a file; None if it cannot be read.

    >>> readable_object(getfixture("tmp_path") / "run.json")
    """
    try:
        return read_object(path)
    except AdapterError:
        return None
