"""What `predict` and `evaluate` have in common: the model, its columns, batches, precision and attention."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foretoken.errors import ConfigError, SaveError
from foretoken.limits import MOST_DOCUMENTS, MOST_TOKENS
from foretoken.options import option
from foretoken.outputs import check_output

if TYPE_CHECKING:
    from foretoken.inference.any_predictor import AnyPredictor

log = logging.getLogger(__name__)
_FORMATS = (".csv", ".tsv", ".xlsx", ".json", ".jsonl", ".ndjson", ".parquet")
_OF_ONE_ROLE = (("text", "text_column", "word_column"), ("label_column", "tag_column"))
_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "int8": "float32, the frozen maps in int8"}


@dataclass(frozen=True, kw_only=True)
class BaseModelOptions:
    """The arguments of every verb that loads an adapter."""

    base_model: str | None = option(
        "folder or hub name of an adapter's base model (default: as the adapter says)", None
    )
    accept_changed: bool = option("load an adapter though its base model is not the one it was trained on", False)


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(BaseModelOptions):
    """The arguments of both verbs; their defaults are those of a recipe."""

    folder: str = option("run folder, adapter folder or model folder, or its name on the hub")
    batch_size: int = option("documents per forward pass", 16, at_least=1, at_most=MOST_DOCUMENTS, one_of="batches")
    tokens_per_batch: int | None = option(
        "tokens per forward pass, padding included, in place of --batch-size",
        None,
        at_least=1,
        at_most=MOST_TOKENS,
        one_of="batches",
    )
    precision: Literal["fp32", "bf16", "int8", "auto"] = option(
        "number format; `auto`: fp32 or bf16, what is faster here, measured for a second; `int8`: frozen weights in 8 "
        "bits, on processors with units for them",
        "fp32",
    )
    attention_engine: str | None = option("implementation of attention (default: the fastest for the device)", None)
    packing: bool | None = option("run documents without their padding (default: where it is faster)", None)
    overwrite: bool = option("replace the file of results where it exists", False)
    text_column: str | None = option("column of the text in a file (default: as in training)", None, one_of="text")
    text: str | None = option(
        "template of the text of several columns, e.g. '{title}\\n{body}' (default: as in training)",
        None,
        one_of="text",
    )
    text_pair_column: str | None = option("column of the second text of a pair (default: as in training)", None)
    word_column: str | None = option("column of the words or texts to tag (default: as in training, or found)", None)
    sentence_column: str | None = option("column of sentences, in a table with a word per row", None)
    unscaled: bool = option("leave out the scaling that training fitted", False)

    @property
    def columns(self) -> dict[str, Any]:
        """The given columns, by the keys of a recipe."""
        names = ("text_column", "text", "text_pair_column", "word_column", "sentence_column")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def columns_for(self, predictor: AnyPredictor) -> dict[str, Any]:
        """Return the columns of a file: the given ones, and those of training."""
        taken = {name for names in _OF_ONE_ROLE if self.columns.keys() & {*names} for name in names}
        remembered = {name: column for name, column in predictor.columns.items() if name not in taken}
        return remembered | self.columns | {"problem": predictor.problem.name}

    def check_result(self, file: Path | None, predictor: AnyPredictor, data: str | None, *endings: str) -> None:
        """Raise before anything is computed if the results cannot be written to a file of one of these endings.

        Raises:
            SaveError: the file exists, or is among the model or the data, or its ending is that of another format.
        """
        if file is not None:
            read = filter(None, [self.folder, predictor.source, data])
            check_output(file, read, overwrite=self.overwrite)
            if file.suffix.lower() in _FORMATS and file.suffix.lower() not in endings:
                raise SaveError(f"cannot write {file}: its format would not be {file.suffix}; name it {endings[0]}")

    def load(self) -> AnyPredictor:
        """Load the folder with the given precision and attention.

        Raises:
            ConfigError: there is no such attention engine.
        """
        from foretoken.inference.any_predictor import load_predictor
        from foretoken.inference.predictor import Predictor
        from foretoken.training.model.engine import engine_errors, use_attention

        if self.attention_engine is not None:
            for error in engine_errors(self.attention_engine, key="--attention-engine"):
                raise ConfigError(error)
        predictor = load_predictor(
            self.folder, precision=self.precision, base_model=self.base_model, accept_changed=self.accept_changed
        )
        use_attention(self.attention_engine, self.packing)
        if isinstance(predictor, Predictor):
            log.info("computing in %s", _PRECISIONS[predictor.precision])
        return predictor
