"""`foretoken predict`: predict texts with an adapter, one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.errors import ConfigError, DataError
from foretoken.options import option
from foretoken_cli.console import described, say
from foretoken_cli.inference import InferenceOptions
from foretoken_cli.parser import parse

if TYPE_CHECKING:
    from foretoken.data.plain_table import Table
    from foretoken.inference.any_predictor import AnyPredictor

log = logging.getLogger(__name__)
_WITH_RAY = ("workers", "adapter_column", "rows_per_block")
_WITHOUT_RAY = ("batch_size", "unscaled", "attention_engine", "packing")


@dataclass(frozen=True, kw_only=True)
class PredictCommand(InferenceOptions):
    """The command line of `foretoken predict`."""

    texts: list[str] | None = option("texts to label", None, positional=True)
    input: str | None = option("file, folder of txt files, or - for one document per line of stdin", None)
    output: Path | None = option(
        "write there instead of to stdout: a JSON object per line (.jsonl), with --ray a folder", None, short="-o"
    )
    ray: bool = option("parquet to parquet with workers of a Ray cluster: $RAY_ADDRESS, or one of this machine", False)
    workers: int = option("processes with a model each, with --ray", 1, at_least=1, at_most=10_000)
    adapter_column: str | None = option(
        "column that names each row's adapter, a subfolder of FOLDER, with --ray (default: FOLDER is the adapter)", None
    )
    rows_per_block: int = option("rows of a file of results, with --ray", 1000, at_least=1, at_most=10**6)


def run(words: Sequence[str]) -> int:
    """Print or write the id of every row and what is predicted for it."""
    options = parse(PredictCommand, "predict", words, described(__doc__))
    if options.ray:
        return _run_with_ray(options)
    for name in _WITH_RAY:
        _refuse_unless_default(options, name, "needs --ray")
    if bool(options.texts) == bool(options.input):
        raise ConfigError("give either texts, or --input with a file, a folder or - (the lines of stdin)")
    from foretoken.files import write_text
    from foretoken.inference.any_predictor import predict_table
    from foretoken.training.tokens.encode import describe

    predictor = options.load()
    options.check_result(options.output, predictor, options.input, ".jsonl", ".json", ".ndjson")
    rows = _rows(options, predictor)
    outputs, truncation, _ = predict_table(
        predictor,
        rows,
        batch_size=options.batch_size,
        tokens_per_batch=options.tokens_per_batch,
        scaled=not options.unscaled,
    )
    log.info(describe(truncation, predictor.max_length))
    answers = zip(rows["id"], predictor.problem.to_json(outputs, rows), strict=True)
    lines = (json_line({"id": name} | answer, to_stdout=options.output is None) for name, answer in answers)
    if options.output is None:
        for line in lines:
            say(line)
    else:
        write_text(options.output, "".join(f"{line}\n" for line in lines))
    return 0


def _run_with_ray(options: PredictCommand) -> int:
    if options.texts or options.input in (None, "-") or options.output is None:
        raise ConfigError("--ray needs --input with a parquet file or a folder of them, and --output with a folder")
    for name in _WITHOUT_RAY:
        _refuse_unless_default(options, name, "does not go with --ray")
    from foretoken.serving.ray.predict import RayOptions, predict

    done = predict(
        RayOptions(
            adapter=Path(options.folder),
            input=Path(str(options.input)),
            output=options.output,
            text_column=options.text_column,
            pair_column=options.text_pair_column,
            adapter_column=options.adapter_column,
            workers=options.workers,
            rows_per_block=options.rows_per_block,
            tokens_per_batch=options.tokens_per_batch or 8192,
            precision=options.precision,
            overwrite=options.overwrite,
        )
    )
    log.info("%d rows in %s; %d of them were there already", done.rows, options.output, done.kept)
    if done.errors:
        log.warning("%d rows have no prediction; the column `error` says why", done.errors)
    return 0


def _refuse_unless_default(options: PredictCommand, name: str, problem: str) -> None:
    (default,) = (item.default for item in fields(options) if item.name == name)
    if getattr(options, name) != default:
        raise ConfigError(f"--{name.replace('_', '-')} {problem}")


def json_line(values: object, *, to_stdout: bool = False) -> str:
    r"""Return values as JSON with every character escaped that does not print.

    With `to_stdout`, letters beyond ASCII are escaped too unless the encoding of stdout has them.

    >>> json_line({"text": "naïve \x9b31m"})
    '{"text": "naïve \\u009b31m"}'
    """
    in_ascii = to_stdout and not (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(values, ensure_ascii=in_ascii)
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _rows(options: PredictCommand, predictor: AnyPredictor) -> Table:
    """Return the rows to predict: texts of the command line or stdin, or what the problem reads from a file."""
    from foretoken.data.plain_table import PlainTable
    from foretoken.inference.predictor import refuse_unusable_texts

    if options.input is None or options.input == "-":
        typed = [(str(number), text) for number, text in enumerate(options.texts or (), 1)]
        texts = _stdin_lines() if options.input else typed
        predictor.problem.check_texts()
        refuse_unusable_texts([text for _, text in texts])
        return PlainTable({"id": [name for name, _ in texts], "text": [text for _, text in texts]})
    from foretoken.data.load import load_inputs
    from foretoken.data.options import DataOptions

    columns = dict(predictor.columns) | options.columns
    return load_inputs(options.input, DataOptions(path=options.input, **columns), predictor.problem.name)


def _stdin_lines() -> list[tuple[str, str]]:
    try:
        lines = sys.stdin.read().splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"stdin: not UTF-8 text ({error.reason} at byte {error.start})") from error
    found = [(str(number), line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise DataError("stdin: no text; expected one document per line")
    return found
