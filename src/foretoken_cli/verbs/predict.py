"""`foretoken predict`: predict texts with an adapter, one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from foretoken.errors import AdapterError, ConfigError, DataError
from foretoken.options import option
from foretoken_cli.console import described, say
from foretoken_cli.inference import InferenceOptions
from foretoken_cli.parser import parse

if TYPE_CHECKING:
    import datasets

    from foretoken.data.plain_table import PlainTable
    from foretoken.data.readers.rows import BadRows
    from foretoken.inference.any_predictor import AnyPredictor
    from foretoken.inference.guarantee import Evidence, Guarantee

log = logging.getLogger(__name__)
_WITH_RAY = ("workers", "adapter_column", "rows_per_block")
_OF_THE_LIMIT = ("confidence", "answer", "guarantee_from")
_WITHOUT_RAY = ("text", "batch_size", "unscaled", "attention_engine", "packing", "strict", "max_error", *_OF_THE_LIMIT)


@dataclass(frozen=True, kw_only=True)
class PredictCommand(InferenceOptions):
    """The command line of `foretoken predict`."""

    texts: list[str] | None = option("texts to label", None, positional=True)
    input: str | None = option("file, folder of txt files, or - for one document per line of stdin", None)
    output: Path | None = option(
        "write there instead of to stdout: a JSON object per line (.jsonl), with --ray a folder", None, short="-o"
    )
    strict: bool = option("stop at a row that cannot be used, in place of giving it an `error` and exit code 1", False)
    max_error: float | None = option(
        "guarantee that no larger share of the answers is wrong: abstain from the others, or answer with sets or "
        "intervals",
        None,
        above=0,
        below=1,
    )
    confidence: float | None = option(
        "of the guarantee, over the draw of the labelled documents (default: 0.95)", None, above=0, below=1
    )
    answer: Literal["abstain", "sets"] | None = option(
        "with --max-error: one class or an abstention, or a set of classes (default: what the problem has)", None
    )
    guarantee_from: str | None = option(
        "labelled file that training has not seen, for --max-error (default: the validation documents)", None
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
    from foretoken.data.readers.rows import DROP, ERROR
    from foretoken.inference.any_predictor import answer_pieces

    predictor = options.load()
    options.check_result(options.output, predictor, options.input, ".jsonl", ".json", ".ndjson")
    answers = answer_pieces(
        predictor,
        pieces_of(options, predictor, ERROR if options.strict else DROP),
        guarantee=_guarantee(options, predictor),
        batch_size=options.batch_size,
        tokens_per_batch=options.tokens_per_batch,
        scaled=not options.unscaled,
    )
    said, first = Counter[object](), ""
    with written(options.output) as write:
        for answer in answers:
            write(json_line(answer, to_stdout=options.output is None))
            first = first or answer.get("error", "")
            said["error" if "error" in answer else answer.get("abstained")] += 1
    _say_abstained(said)
    errors = said["error"]
    if errors:
        count = f"{errors:,} of {said.total():,} rows"
        log.error("%s: an error in the place of an answer; the first: %s", count, first)
    return 1 if errors else 0


@contextmanager
def written(output: Path | None) -> Iterator[Callable[[str], object]]:
    """Give what writes a line: to stdout, or to a file that is there when the block has ended well."""
    from foretoken.files import atomic_file

    if output is None:
        yield say
        return
    with atomic_file(output) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        yield lambda line: file.write(f"{line}\n")


def _guarantee(options: PredictCommand, predictor: AnyPredictor) -> Guarantee | None:
    """Return the guarantee that is asked for, fitted on validation or on a labelled file."""
    if options.max_error is None:
        for name in _OF_THE_LIMIT:
            _refuse_unless_default(options, name, "needs --max-error")
        return None
    from foretoken.inference.any_predictor import posed
    from foretoken.inference.guarantee import Limit, kind_of, validation_of

    scaled, limit = not options.unscaled, Limit(options.max_error, options.confidence, options.answer)
    kind_of(predictor.problem, limit)
    if options.guarantee_from is None:
        scaling = predictor.scaling if scaled else None
        evidence = validation_of(Path(options.folder), posed(predictor, scaled=scaled), scaling)
        if evidence is None:
            raise AdapterError(
                f"{options.folder}: the predictions for its validation documents, validation.parquet beside the model, "
                "are not there; name a labelled file with --guarantee-from, or train again"
            )
    else:
        evidence = _evidence_from(options.guarantee_from, options, predictor)
    guarantee = evidence.guarantee(limit)
    log.info("guaranteed: %s", guarantee.says)
    return guarantee


def _evidence_from(file: str, options: PredictCommand, predictor: AnyPredictor) -> Evidence:
    from foretoken.data.load import load_examples
    from foretoken.data.options import DataOptions
    from foretoken.inference.evaluate import predicted
    from foretoken.inference.guarantee import Evidence

    data = DataOptions(path=file, **options.columns_for(predictor))
    documents = load_examples(file, data, predictor.problem.name, predictor.problem.labels)
    outcome = predicted(
        predictor,
        documents,
        batch_size=options.batch_size,
        tokens_per_batch=options.tokens_per_batch,
        scaled=not options.unscaled,
    )
    return Evidence(outcome.problem, outcome.outputs, outcome.labels)


def _say_abstained(said: Mapping[object, int]) -> None:
    answered, abstained = said.get(False, 0), said.get(True, 0)
    if answered or abstained:
        log.info("%s of %s documents are answered", f"{answered:,}", f"{answered + abstained:,}")


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
            base_model=options.base_model,
            accept_changed=options.accept_changed,
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


class Sources(Protocol):
    """Where `predict` and `explain` find their texts."""

    @property
    def texts(self) -> list[str] | None:
        """Those of the command line."""

    @property
    def input(self) -> str | None:
        """A file or a folder, or - for stdin."""

    def columns_for(self, predictor: AnyPredictor) -> dict[str, Any]:
        """Return how a file is read, by the keys of a recipe."""


def pieces_of(
    options: Sources, predictor: AnyPredictor, policy: str
) -> Iterable[tuple[datasets.Dataset | PlainTable, BadRows]]:
    """Return the rows to predict: texts of the command line or stdin, or what the problem reads from a file."""
    from foretoken.data.readers.rows import BadRows

    if options.input is None or options.input == "-":
        predictor.problem.check_texts()
        if "text" in predictor.columns:
            log.info("a bare text is taken as the whole text; %r is for --input with a file", predictor.columns["text"])
        texts = _stdin_lines() if options.input else list(enumerate(options.texts or (), 1))
        bad_rows = BadRows(policy)
        return [(_of_texts("stdin line" if options.input else "text", texts, bad_rows), bad_rows)]
    from foretoken.data.load import input_pieces
    from foretoken.data.options import DataOptions

    data = DataOptions(path=options.input, **options.columns_for(predictor))
    return input_pieces(options.input, data, predictor.problem.name, policy)


def _of_texts(where: str, texts: Sequence[tuple[int, str]], bad_rows: BadRows) -> PlainTable:
    from foretoken.data.documents import Document, not_empty
    from foretoken.data.plain_table import PlainTable
    from foretoken.data.readers.rows import ColumnNames, read_each, text_value

    def document(place: str, row: Mapping[str, str], _: int) -> Document:
        return not_empty(Document(row["id"], text_value(place, row["text"], "text"), None, place))

    rows = [(f"{where} {number}", {"id": str(number), "text": text}) for number, text in texts]
    documents = read_each(rows, document, ColumnNames(label=None, bad_rows=bad_rows), f"{where}: no text")
    return PlainTable({name: [getattr(document, name) for document in documents] for name in ("id", "text")})


def _stdin_lines() -> list[tuple[int, str]]:
    """Return the lines of stdin that are not blank, with their numbers; bytes that are not UTF-8 stay to be refused."""
    from foretoken.data.readers.files import as_text, text_lines
    from foretoken.data.readers.formats import AUTO, marked

    content, errors = sys.stdin.buffer.read(), "surrogateescape"
    text = as_text("stdin", content, AUTO, errors=errors) if marked(content) else content.decode("utf-8", errors)
    lines = [(number, line) for number, line in enumerate(text_lines(text), 1) if line.strip()]
    if not lines:
        raise DataError("stdin: no text; expected one document per line")
    return lines
