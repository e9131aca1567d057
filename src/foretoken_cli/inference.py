"""The options that `predict` and `evaluate` have in common: batches, precision and attention."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.errors import ConfigError
from foretoken.limits import MOST_DOCUMENTS, MOST_TOKENS
from foretoken.outputs import check_output
from foretoken_cli.parser import whole

if TYPE_CHECKING:
    from foretoken.inference.predictor import Predictor

log = logging.getLogger(__name__)
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}


def add_inference_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; their defaults are those of a recipe."""
    sizes = parser.add_mutually_exclusive_group()
    documents, tokens = whole(1, MOST_DOCUMENTS), whole(1, MOST_TOKENS)
    sizes.add_argument("--batch-size", type=documents, default=16, help="documents per forward pass (default: 16)")
    sizes.add_argument(
        "--tokens-per-batch", type=tokens, help="tokens per forward pass, padding included, in place of --batch-size"
    )
    parser.add_argument("--unscaled", action="store_true", help="leave out the scaling that training fitted")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="number format (default: fp32)")
    parser.add_argument("--attention-engine", help="implementation of attention (default: the fastest for the device)")
    parser.add_argument(
        "--packing",
        action=argparse.BooleanOptionalAction,
        help="run documents without their padding (default: where it is faster)",
    )


def add_column_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the columns of texts."""
    parser.add_argument("--text-column", help="column of the text in a file (default: as in training)")
    parser.add_argument("--text-pair-column", help="column of the second text of a pair (default: as in training)")


def given_columns(options: argparse.Namespace) -> dict[str, Any]:
    """Return the columns that the command line names, by the recipe's keys."""
    names = ("text_column", "text_pair_column", "label_column")
    return {name: value for name in names for value in [getattr(options, name, None)] if value}


def check_result(file: Path | None, predictor: Predictor, options: argparse.Namespace, data: str | None) -> None:
    """Raise where the results cannot go into a file: nobody should have to wait for them to hear that.

    Raises:
        SaveError: the file exists, or is among the model or the data.
    """
    if file is not None:
        config: Any = predictor.model.config
        read = filter(None, [options.folder, config.name_or_path, data])
        check_output(file, read, overwrite=options.overwrite)


def load(options: argparse.Namespace) -> Predictor:
    """Load the folder that the options name, with the precision and attention that they ask for.

    Raises:
        ConfigError: there is no such attention engine.
    """
    from foretoken.inference.predictor import load_for_inference
    from foretoken.training.model.engine import engine_errors, use_attention

    if options.attention_engine is not None:
        for error in engine_errors(options.attention_engine, key="--attention-engine"):
            raise ConfigError(error)
    predictor = load_for_inference(Path(options.folder), precision=options.precision)
    use_attention(options.attention_engine, options.packing)
    log.info("computing in %s", PRECISIONS[options.precision])
    return predictor
