"""Ahead-of-time P-tuning (Gavrilov & Balagansky): a vector that depends on the token is added before every layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import nn

from foretoken.errors import AdapterError, BackboneError, ConfigError
from foretoken.files import PathLike
from foretoken.methods.aot.modules import FullyConnected, Fused, Kronecker, TokenEntry, TokensOfBatch
from foretoken.methods.aot.table import FILE_NAME, FusedTable, copy_table, find_table, write_table
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.require import require_choice, require_fraction, require_int
from foretoken.methods.sites import Sites
from foretoken.options import option

Variant: TypeAlias = Literal["fc", "kronecker"]
Activation: TypeAlias = Literal["gelu", "relu", "tanh"]

RANKS: dict[str, int] = {"fc": 64, "kronecker": 10}  # about the same number of parameters


@dataclass
class AoTPTuningConfig(ForetokenConfig):
    """Ahead-of-time P-tuning: ``H^(l) + T^(l)[x]`` enters layer l, T^(l) (V, D) indexed by the token ids x.

    Gavrilov & Balagansky, eq. 5. T is not trained itself but yielded by few parameters, and only for the tokens of the
    batch: ``T = f(E W1 + b1) W2 + b2`` with the frozen embeddings E (eq. 7, ``fc``, L (2 R D + R + D) parameters), or
    ``T = (A (x) B) C`` with A (a, R), B (b, R), C (R^2, D) (eq. 6, ``kronecker``, L R (a + b + R D) parameters).
    Training starts at T = 0. After training, T can be fused into a file (:func:`foretoken.fuse`) and is looked up.

    Args:
        variant: ``fc`` or ``kronecker``.
        rank: R (default: 64 for fc, 10 for kronecker).
        activation: f of fc: ``gelu``, ``relu`` or ``tanh``.
        factors: a and b of kronecker, ``a b >= V`` (default: both near the square root of V).
        dropout: probability of dropping an element of what is added, in training.

    Raises:
        ConfigError: a value that cannot work, e.g. ``rank`` below 1.

    >>> AoTPTuningConfig(task_type="SEQ_CLS").rank
    64
    >>> AoTPTuningConfig(variant="kroneker")
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: variant is 'kroneker' (did you mean 'kronecker'?); expected fc or kronecker
    """

    variant: Variant = option("a network on the frozen embeddings (fc), or a Kronecker product", "fc")
    rank: int | None = option("rank of the reparametrisation (default: 64 for fc, 10 for kronecker)", None)
    activation: Activation = option("non-linearity of fc", "gelu")
    factors: list[int] | None = option(
        "rows a and b of kronecker's factors, a · b >= vocabulary (default: near its square root)", None
    )
    dropout: float = option("dropout on what is added, in training", 0.0)
    fused_table: str | None = option("file with the table, once it is fused (filled in)", None, internal=True)

    method_type: ClassVar[str] = "FORETOKEN_AOT_P_TUNING"
    training_options: ClassVar[tuple[str, ...]] = (*ForetokenConfig.training_options, "fused_table")

    def validate(self) -> None:
        """Raise ConfigError for values that cannot work; fill in the default rank."""
        require_choice("variant", self.variant, get_args(Variant))
        require_choice("activation", self.activation, get_args(Activation))
        if self.rank is None:
            self.rank = RANKS[self.variant]  # saved with the adapter, which then does not depend on a later default
        require_int("rank", self.rank, minimum=1)
        require_fraction("dropout", self.dropout)
        if self.variant == "fc" and self.factors is not None:
            raise ConfigError(f"factors {self.factors!r} belong to variant='kronecker'; leave them out for fc")
        if self.variant == "kronecker" and self.activation != "gelu":
            raise ConfigError(f"activation {self.activation!r} belongs to variant='fc'; leave it out for kronecker")
        if self.factors is not None:
            self.factors = checked_factors(self.factors)

    def build(self, dimensions: Dimensions) -> Sites:
        """Return one entry per layer.

        Raises:
            BackboneError: fc, and the model has no embeddings to read.
            ConfigError: ``factors`` whose product is smaller than the vocabulary.
            AdapterError: a fused table that is missing, damaged or of another model.
        """
        layers = range(dimensions.num_layers)
        if self.fused_table is not None:
            table = FusedTable(self.fused_table, table_shape(dimensions))
            batch = TokensOfBatch(dimensions.vocab_size, device="cpu")
            return Sites(layers={layer: TokenEntry(Fused(table, layer), batch, dropout=0.0) for layer in layers})
        make = self.make_fc if self.variant == "fc" else self.make_kronecker
        batch = TokensOfBatch(None if self.variant == "fc" else math.prod(self.factors_for(dimensions.vocab_size)))
        return Sites(layers={layer: TokenEntry(make(dimensions), batch, dropout=self.dropout) for layer in layers})

    def make_fc(self, dimensions: Dimensions) -> FullyConnected:
        """Return one layer's network."""
        return FullyConnected(
            readable(dimensions),
            dimensions.hidden_size,
            rank=int(self.rank or 0),
            activation=self.activation,
            unknown=dimensions.trained_tokens,
        )

    def make_kronecker(self, dimensions: Dimensions) -> Kronecker:
        """Return one layer's product."""
        factors = self.factors_for(dimensions.vocab_size)
        return Kronecker(factors, dimensions.hidden_size, rank=int(self.rank or 0))

    def factors_for(self, vocab_size: int) -> tuple[int, int]:
        """Return a and b: ``factors``, or the smallest numbers near the square root of V.

        >>> AoTPTuningConfig(variant="kronecker").factors_for(50265)
        (225, 224)
        """
        if self.factors is None:
            rows = math.isqrt(vocab_size - 1) + 1
            return rows, -(-vocab_size // rows)
        a, b = self.factors
        if a * b < vocab_size:
            raise ConfigError(
                f"factors {self.factors} reach {a * b} tokens and the vocabulary has {vocab_size}; "
                f"a · b must be at least that, e.g. factors=[{a}, {-(-vocab_size // a)}], or leave them out"
            )
        return a, b

    def differs_in_parameters_alone(self) -> bool:
        """Tell whether there is no table in a file."""
        return self.fused_table is None

    def with_files_in(self, folder: PathLike) -> ForetokenConfig:
        """Return the config as it is saved, with a copy of the fused table beside it.

        Raises:
            SaveError: the table cannot be written.
        """
        if self.fused_table is None:
            return self
        saved = copy(self)
        saved.fused_table = copy_table(self.fused_table, folder)
        return saved

    def with_files_of(self, source: PathLike, *, subfolder: str | None, **options: Any) -> ForetokenConfig:
        """Return the config with the path of its table for the table's name.

        Raises:
            AdapterError: it names a table that ``source`` does not have.
        """
        if self.fused_table is not None:
            self.fused_table = find_table(self.fused_table, source, subfolder=subfolder, **options)
        return self

    def fused(
        self, sites: Sites, dimensions: Dimensions, *, folder: Path | None, dtype: torch.dtype
    ) -> tuple[ForetokenConfig, Sites] | None:
        """Write T into a file in ``folder``, and look up its rows there from now on.

        Raises:
            AdapterError: no folder was given.
        """
        if self.fused_table is not None:
            return None
        if folder is None:
            raise AdapterError("AoT P-tuning is fused into a file; give the adapter's folder: fuse(model, folder)")
        entries = {layer: entry for layer, entry in sites.layers.items() if isinstance(entry, TokenEntry)}
        config = write_fused_table(self, dimensions, entries, folder, dtype=dtype)
        table = FusedTable(str(config.fused_table), table_shape(dimensions))
        batch = TokensOfBatch(dimensions.vocab_size, device="cpu")
        for layer, entry in entries.items():
            entry.shift, entry.batch, entry.dropout.p = Fused(table, layer), batch, 0.0
        return config, sites


def checked_factors(factors: object) -> list[int]:
    """Return a and b as a list that json can hold."""
    if not isinstance(factors, list | tuple) or len(factors) != 2:
        raise ConfigError(f"factors is {factors!r}; expected two whole numbers [a, b], a · b >= vocabulary")
    for value in factors:
        require_int("factors", value, minimum=1)
    return list(factors)


def readable(dimensions: Dimensions) -> nn.Embedding:
    """Return the embeddings if they are readable as floating-point numbers.

    Raises:
        BackboneError: there are no embeddings, or they are quantised.
    """
    embedding = dimensions.embedding
    if embedding is None or not embedding.weight.is_floating_point():
        problem = "has none that it can read" if embedding is None else f"quantises them as {embedding.weight.dtype}"
        raise BackboneError(
            f"variant='fc' reads the frozen token embeddings, and this {dimensions.model_type} model {problem}; "
            "choose variant='kronecker'"
        )
    return embedding


def table_shape(dimensions: Dimensions) -> tuple[int, int, int]:
    """Return the shape (L, V, D) of T for all layers."""
    return dimensions.num_layers, dimensions.vocab_size, dimensions.hidden_size


@torch.no_grad()
def write_fused_table(
    config: AoTPTuningConfig,
    dimensions: Dimensions,
    entries: Mapping[int, TokenEntry],
    folder: PathLike,
    *,
    dtype: torch.dtype = torch.float16,
    rows_per_chunk: int = 4096,
) -> AoTPTuningConfig:
    """Write T of all layers into ``folder`` and return the config of an adapter with this table.

    Args:
        config: the adapter's config.
        dimensions: the numbers of its backbone.
        entries: the adapter's modules by layer, built by its config.
        folder: the adapter's future folder.
        dtype: float32, float16 or bfloat16; the file takes L V D times its size.
        rows_per_chunk: the number of rows in memory at a time.

    Raises:
        ConfigError: another dtype.
        AdapterError: values that the dtype cannot represent.
        SaveError: the file cannot be written.
    """
    path = Path(folder) / FILE_NAME
    write_table(
        path,
        lambda layer, ids: entries[layer].shift(ids),
        shape=table_shape(dimensions),
        dtype=dtype,
        rows_per_chunk=rows_per_chunk,
    )
    return replace(config, fused_table=str(path))
