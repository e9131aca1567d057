"""What the folder of a sentence encoder says of itself, in the files of sentence-transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from foretoken.errors import BackboneError, quoted
from foretoken.files import write_json

Pool: TypeAlias = Literal["mean", "first", "max"]
MODULES, POOLING, _LENGTH = "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"
_POOLS: dict[str, Pool] = {"mean": "mean", "cls": "first", "max": "max"}
_TYPES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class SentenceEncoder:
    """How a text's vector is made of the last hidden states of its tokens.

    Attributes:
        pool: what the vector is: the mean of the tokens' states, that of the first one, or their maximum.
        max_length: tokens of a text that are read; None: as many as the model's tokenizer says.
    """

    pool: Pool = "mean"
    max_length: int | None = None

    @classmethod
    def of(cls, source: str | Path | None) -> SentenceEncoder:
        """Return what a folder or hub name says; the mean where there is none, or it says nothing.

        That is what sentence-transformers takes such a model for.

        Raises:
            BackboneError: its vectors are made in a way that is not known here.
        """
        modules = _read(source, MODULES) if source else None
        if source is None or not isinstance(modules, list):
            return cls()
        if unknown := {_last(module, "type") for module in modules} - set(_TYPES):
            raise BackboneError(
                f"{source}: {MODULES} has a module {quoted(min(unknown))}; what is known are {', '.join(_TYPES)}. Use "
                "this model with sentence-transformers itself"
            )
        length = _field(_read(source, _LENGTH), "max_seq_length")
        return cls(_pool(source, pooling_mode(source)), length if isinstance(length, int) else None)


def copy_pooling(source: str, folder: Path) -> None:
    """Write what a sentence encoder says of its vectors beside a model made of it, which reads other lengths.

    Raises:
        BackboneError: its vectors are made in a way that is not known here.
    """
    SentenceEncoder.of(source)
    for name in (MODULES, POOLING):
        if (values := _read(source, name)) is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            write_json(folder / name, values)


def is_sentence_encoder(source: str | Path) -> bool:
    """Tell whether a folder or hub name is one that sentence-transformers saved."""
    return isinstance(_read(source, MODULES), list)


def pooling_mode(source: str | Path) -> object:
    """Return what ``1_Pooling/config.json`` calls the pooling, in its new or old form; None where it is not there."""
    settings = _read(source, POOLING)
    if not isinstance(settings, dict):
        return None
    if "pooling_mode" in settings:
        return settings["pooling_mode"]
    given = [name for name, is_on in settings.items() if name.startswith("pooling_mode_") and is_on is True]
    names = [name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for name in given]
    return names[0] if len(names) == 1 else names


def _pool(source: str | Path, mode: object) -> Pool:
    if mode is None:
        return "mean"
    if isinstance(mode, str) and mode in _POOLS:
        return _POOLS[mode]
    raise BackboneError(
        f"{source}: its pooling is {quoted(mode)}, expected one of {', '.join(_POOLS)}; use this model with "
        "sentence-transformers itself"
    )


def _read(source: str | Path, name: str) -> Any:
    """Return what a JSON file of a folder, or of a model on the hub, holds; None where there is none."""
    from transformers.utils import cached_file

    try:
        file = cached_file(str(source), name)
        return json.loads(Path(file).read_text(encoding="utf-8")) if file else None
    except (OSError, ValueError, RecursionError):
        return None


def _field(values: object, name: str) -> object:
    return values.get(name) if isinstance(values, dict) else None


def _last(values: object, name: str) -> str:
    return str(_field(values, name)).rpartition(".")[2]
