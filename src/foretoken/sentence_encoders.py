"""What the folder of a sentence encoder says of itself, in the files that sentence-transformers reads and writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from foretoken.errors import BackboneError, quoted
from foretoken.files import write_json

Pool: TypeAlias = Literal["mean", "first", "max"]
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
_NORMALIZE, _LENGTH = "2_Normalize", "sentence_bert_config.json"
_POOLS: dict[str, Pool] = {"mean": "mean", "cls": "first", "max": "max"}
_TYPES = {
    "Transformer": "sentence_transformers.models.Transformer",
    "Pooling": "sentence_transformers.models.Pooling",
    "Normalize": "sentence_transformers.models.Normalize",
}


@dataclass(frozen=True)
class SentenceEncoder:
    """How a text's vector is made of the last hidden states of its tokens.

    Attributes:
        pool: what the vector is: the mean of the tokens' states, that of the first one, or their maximum.
        normalise: whether it is scaled to length 1.
        max_length: tokens of a text that are read; None: as many as the model's tokenizer says.
    """

    pool: Pool = "mean"
    normalise: bool = False
    max_length: int | None = None

    @classmethod
    def of(cls, source: str | Path | None) -> SentenceEncoder:
        """Return what a folder or hub name says; the mean, not normalised, where there is none, or it says nothing.

        That is what sentence-transformers takes such a model for.

        Raises:
            BackboneError: its vectors are made in a way that is not known here.
        """
        modules = _read(source, MODULES) if source else None
        if source is None or not isinstance(modules, list):
            return cls()
        kinds = {_last(module, "type"): module for module in modules}
        if unknown := kinds.keys() - _TYPES.keys():
            raise BackboneError(
                f"{source}: {MODULES} has a module {quoted(min(unknown))}; what is known are {', '.join(_TYPES)}. Use "
                "this model with sentence-transformers itself"
            )
        length = _field(_read(source, _LENGTH), "max_seq_length")
        return cls(
            pool=_pool(source, pooling_mode(source)),
            normalise="Normalize" in kinds,
            max_length=length if isinstance(length, int) else None,
        )

    def write(self, folder: Path, width: int) -> None:
        """Write the files beside a model or an adapter, so that sentence-transformers loads the folder as it is."""
        mode = next(name for name, pool in _POOLS.items() if pool == self.pool)
        places = {"Transformer": "", "Pooling": POOLING.partition("/")[0]}
        places |= {"Normalize": _NORMALIZE} if self.normalise else {}
        rows = [
            {"idx": index, "name": str(index), "path": path, "type": _TYPES[kind]}
            for index, (kind, path) in enumerate(places.items())
        ]
        (folder / POOLING).parent.mkdir(exist_ok=True)  # the others have nothing to say
        write_json(folder / POOLING, {"word_embedding_dimension": width, "pooling_mode": mode})
        write_json(folder / MODULES, rows)
        if self.max_length is not None:
            write_json(folder / _LENGTH, {"max_seq_length": self.max_length, "do_lower_case": False})


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
