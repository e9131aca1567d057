"""What data and tokens are made of, as far as it decides what they are: the ingredients of a key of the cache."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from foretoken.data.options import FOLD_OPTIONS, DataOptions
from foretoken.data.readers.files import is_there, local_path
from foretoken.data.tasks.table import find_raw, get_task
from foretoken.errors import DataError
from foretoken.files import JsonObject, file_digest
from foretoken.limits import free_memory
from foretoken.training.tokens.encode import EncodeSettings


def of_source(options: DataOptions) -> JsonObject | None:
    """Return the content of the files that the options name; None for what is no file: the hub, installed packages."""
    try:
        paths = _paths(options)
        digests = {str(path): files_digest(path) for path in paths}
    except (DataError, OSError):  # whoever reads it says what is wrong
        return None
    folds = () if options.folds is not None else FOLD_OPTIONS  # without folds, keys stay as before there were any
    idle = (*folds, "made_up")  # what is made up comes from no file
    chosen = {name: value for name, value in asdict(options).items() if name not in idle}
    return {"files": digests, "options": chosen} if digests else None


def of_encoding(settings: EncodeSettings) -> JsonObject:
    """Return what decides which tokens a text gets."""
    return {
        "tokenizer": tokenizer_digest(settings.tokenizer),
        "max_length": settings.max_length,
        "rules": asdict(settings.rules),
        "chunks": None if settings.chunks is None else asdict(settings.chunks),
    }


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of everything that a tokenizer would save, and of its class."""
    kind = type(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts: JsonObject = {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "special": [str(token) for token in tokenizer.all_special_tokens],
        "sides": [tokenizer.truncation_side, tokenizer.padding_side],
        "init": repr(sorted(tokenizer.init_kwargs.items(), key=lambda item: item[0])) if backend is None else None,
    }
    if backend is None:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            parts["files"] = files_digest(Path(folder))
    else:
        state = json.loads(backend.to_str())
        state.pop("truncation"), state.pop("padding")  # of the last call
        parts["backend"] = state
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def files_digest(path: Path) -> str:
    """Return a digest of a file's bytes, or of all files in a folder with their names.

    Raises:
        OSError: something cannot be read, or is no file: a pipe can be read only once.
    """
    digest, room = hashlib.sha256(), free_memory()
    for file in _files(path):
        if room is not None and file.stat().st_size > room:  # no reader takes it, and hashing it could last for hours
            raise OSError(f"{file} is larger than the memory")
        name = os.fsencode(file.relative_to(path))
        digest.update(b"%d %b %b\n" % (len(name), name, file_digest(file).encode()))
    return digest.hexdigest()


def _paths(options: DataOptions) -> list[Path]:
    if options.task is not None:
        known = get_task(options.task)
        is_local = known.needs_raw and options.path != "hub"
        return [find_raw(known, options.path)] if is_local else []
    named = [options.path, options.train, options.validation, options.test]
    paths = [local_path(name) for name in named if name is not None]
    return paths if all(map(is_there, paths)) else []


def _files(path: Path) -> Iterator[Path]:
    """Yield a file, or the files in a folder; links to folders are followed, as readers follow them."""
    if not path.is_dir():
        yield _regular(path)
        return
    seen: set[str] = set()
    for folder, folders, names in os.walk(path, followlinks=True, onerror=_raise):
        place = os.path.realpath(folder)
        if place in seen:
            folders[:] = []
            continue
        seen.add(place)
        folders.sort()
        yield from (_regular(Path(folder, name)) for name in sorted(names))


def _regular(file: Path) -> Path:
    if not file.is_file():
        raise OSError(f"{file} is no file")
    return file


def _raise(error: OSError) -> None:
    raise error
