"""`foretoken predict`: predict texts with an adapter, one JSON object per line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.errors import ConfigError, DataError
from foretoken_cli.console import described, json_line, say
from foretoken_cli.inference import add_column_options, add_inference_options, check_result, given_columns, load
from foretoken_cli.parser import Parser

if TYPE_CHECKING:
    from datasets import Dataset

    from foretoken.inference.predictor import Predictor

log = logging.getLogger(__name__)


def run(arguments: Sequence[str]) -> int:
    """Print or write the id of every row and what is predicted for it."""
    options = _parser().parse_args(arguments)
    if bool(options.texts) == bool(options.input):
        raise ConfigError("give either texts, or --input with a file, a folder or - (the lines of stdin)")
    from foretoken.files import write_text
    from foretoken.inference.predictor import predict_rows
    from foretoken.training.tokens.encode import describe

    predictor = load(options)
    check_result(options.output, predictor, options, options.input)
    rows = _rows(options, predictor)
    outputs, truncation, _ = predict_rows(
        predictor,
        rows,
        batch_size=options.batch_size,
        tokens_per_batch=options.tokens_per_batch,
        scaled=not options.unscaled,
    )
    log.info(describe(truncation, predictor.max_length))
    answers = zip(rows["id"], predictor.problem.answers(outputs, rows), strict=True)
    lines = (json_line({"id": name} | answer, to_stdout=options.output is None) for name, answer in answers)
    if options.output is None:
        for line in lines:
            say(line)
    else:
        write_text(options.output, "".join(f"{line}\n" for line in lines))
    return 0


def _rows(options: argparse.Namespace, predictor: Predictor) -> Dataset:
    """Return the rows to predict: texts of the command line or stdin, or whatever the problem reads from a file."""
    import datasets

    from foretoken.inference.predictor import refuse_unusable_texts

    texts = _typed(options)
    if texts is not None:
        predictor.problem.check_texts()
        refuse_unusable_texts([text for _, text in texts])
        return datasets.Dataset.from_dict({"id": [name for name, _ in texts], "text": [text for _, text in texts]})
    from foretoken.data.load import load_inputs
    from foretoken.data.options import DataOptions

    columns = dict(predictor.columns) | given_columns(options)
    return load_inputs(options.input, DataOptions(path=options.input, **columns), predictor.problem.name)


def _typed(options: argparse.Namespace) -> list[tuple[str, str]] | None:
    """Return (id, text) from the command line or the lines of stdin; None where a file is named."""
    if options.texts:
        return [(str(number), text) for number, text in enumerate(options.texts, 1)]
    return _stdin_lines() if options.input == "-" else None


def _stdin_lines() -> list[tuple[str, str]]:
    try:
        lines = sys.stdin.read().splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"stdin: not UTF-8 text ({error.reason} at byte {error.start})") from error
    found = [(str(number), line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise DataError("stdin: no text; expected one document per line")
    return found


def _parser() -> Parser:
    parser = Parser(prog="foretoken predict", description=described(__doc__))
    parser.add_argument("folder", help="run folder, adapter folder or model folder")
    parser.add_argument("texts", nargs="*", help="texts to label")
    parser.add_argument("--input", help="file, folder of txt files, or - for one document per line of stdin")
    add_column_options(parser)
    parser.add_argument("-o", "--output", type=Path, help="write there instead of to stdout")
    parser.add_argument("--overwrite", action="store_true", help="replace the output where it exists")
    add_inference_options(parser)
    return parser
