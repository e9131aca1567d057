"""`foretoken predict`: label texts with an adapter, one JSON object per line."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.cli.console import described
from foretoken.cli.inference import add_inference_options, load
from foretoken.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)


def run(arguments: Sequence[str]) -> int:
    """Print or write id, label, probability and the probabilities of every text."""
    options = _parser().parse_args(arguments)
    if bool(options.texts) == bool(options.input):
        raise ConfigError("give either texts, or --input with a file, a folder or - (the lines of stdin)")
    from foretoken.files import write_text
    from foretoken.training.predict import predict_texts
    from foretoken.training.tokenise import describe

    classifier = load(options)
    texts = _texts(options, options.text_column or classifier.text_column)
    probabilities, truncation = predict_texts(
        classifier,
        [text for _, text in texts],
        batch_size=options.batch_size,
        tokens_per_batch=options.tokens_per_batch,
    )
    log.info(describe(truncation, classifier.max_length))
    lines = "".join(_lines([name for name, _ in texts], probabilities, classifier.labels))
    if options.output is None:
        sys.stdout.write(lines)
    else:
        write_text(options.output, lines)
    return 0


def _texts(options: argparse.Namespace, text_column: str) -> list[tuple[str, str]]:
    """Return (id, text) from the command line, a file, a folder or the lines of stdin."""
    if options.texts:
        return [(str(number), text) for number, text in enumerate(options.texts, 1)]
    if options.input == "-":
        return _stdin_lines()
    from foretoken.data.load import load_texts

    return load_texts(options.input, text_column)


def _stdin_lines() -> list[tuple[str, str]]:
    try:
        lines = sys.stdin.read().splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"stdin: not UTF-8 text ({error.reason} at byte {error.start})") from error
    found = [(str(number), line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise DataError("stdin: no text; expected one document per line")
    return found


def _lines(names: Sequence[str], probabilities: np.ndarray, labels: Sequence[str]) -> Iterator[str]:
    for name, row in zip(names, probabilities.tolist(), strict=True):
        best = max(range(len(row)), key=row.__getitem__)
        answer = {
            "id": name,
            "label": labels[best],
            "probability": round(row[best], 6),
            "probabilities": {label: round(value, 6) for label, value in zip(labels, row, strict=True)},
        }
        yield json.dumps(answer, ensure_ascii=False) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="foretoken predict", description=described(__doc__), allow_abbrev=False)
    parser.add_argument("folder", help="run folder, adapter folder or model folder")
    parser.add_argument("texts", nargs="*", help="texts to label")
    parser.add_argument("--input", help="file, folder of txt files, or - for one document per line of stdin")
    parser.add_argument("--text-column", help="column of the text in a file (default: as in training)")
    parser.add_argument("--output", type=Path, help="write there instead of to stdout")
    add_inference_options(parser)
    return parser
