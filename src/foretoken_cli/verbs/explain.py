"""`foretoken explain`: answer texts, and show the words or passages that the answers rest on."""

from __future__ import annotations

import html
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from foretoken.errors import ConfigError, cut, printable
from foretoken.options import option
from foretoken_cli.console import described, say, writing_results
from foretoken_cli.inference import InferenceOptions
from foretoken_cli.parser import parse
from foretoken_cli.verbs.predict import _rows as rows_of
from foretoken_cli.verbs.predict import json_line

log = logging.getLogger(__name__)
_MARKED = 0.1  # of the largest score, from which a piece is marked on a terminal
_WIDEST, _SHOWN = 200, 2000  # characters of a passage, and of a text, on a terminal
_PAGE = """<!doctype html><html><meta charset="utf-8"><title>foretoken explain</title>
<style>body {{ font: 1rem/1.5 sans-serif; max-width: 50rem; margin: 2rem auto }} p {{ white-space: pre-wrap }}</style>
{}
</html>
"""


@dataclass(frozen=True, kw_only=True)
class ExplainCommand(InferenceOptions):
    """The command line of `foretoken explain`."""

    texts: list[str] | None = option("texts to answer and explain", None, positional=True)
    input: str | None = option("file, folder of txt files, or - for one document per line of stdin", None)
    output: Path | None = option("write there: a JSON object per line (.jsonl), or a page (.html)", None, short="-o")
    label: str | None = option("explain this label, whatever the answer is", None)
    by: Literal["words", "passages"] | None = option(
        "what is scored (default: words of documents of up to 128 tokens, passages of longer ones)", None
    )
    top: int = option("words or passages of a document", 10, at_least=1, at_most=10**6)
    format: Literal["text", "json"] | None = option("of stdout (default: text on a terminal, else json)", None)


def run(words: Sequence[str]) -> int:
    """Print or write every document's answer and evidence."""
    options = parse(ExplainCommand, "explain", words, described(__doc__))
    if bool(options.texts) == bool(options.input):
        raise ConfigError("give either texts, or --input with a file, a folder or - (the lines of stdin)")
    from foretoken.data.readers.rows import DROP, BadRows
    from foretoken.files import write_text
    from foretoken.inference.attributions import ExplainOptions
    from foretoken.inference.explain import check_explainable, explain_rows

    predictor = options.load()
    check_explainable(predictor, options.label)
    options.check_result(options.output, predictor, options.input, ".jsonl", ".json", ".ndjson", ".html")
    bad_rows = BadRows(DROP)
    table = rows_of(options, predictor, bad_rows)  # type: ignore[arg-type]  # it reads what the two verbs share
    tokens = options.tokens_per_batch or ExplainOptions.tokens_per_batch
    settings = ExplainOptions(label=options.label, by=options.by, top=options.top, tokens_per_batch=tokens)
    batches = {"batch_size": options.batch_size, "tokens_per_batch": options.tokens_per_batch}
    answers = explain_rows(predictor, table, bad_rows, settings, scaled=not options.unscaled, **batches)
    if options.output is None:
        as_text = sys.stdout.isatty() if options.format is None else options.format == "text"
        for answer, text in answers:
            if as_text:
                _show(answer, text)
            else:
                say(json_line(answer, to_stdout=True))
    elif options.output.suffix.lower() == ".html":
        write_text(options.output, _PAGE.format("\n".join(_section(answer, text) for answer, text in answers)))
    else:
        write_text(options.output, "".join(f"{json_line(answer)}\n" for answer, _ in answers))
    if bad_rows.rows:
        log.error("%s rows have an error in the place of an answer", f"{len(bad_rows.rows):,}")
    return 1 if bad_rows.rows else 0


def _show(answer: dict[str, Any], text: str) -> None:
    """Print an answer, its evidence, and a text that is not long with the evidence marked."""
    from rich.console import Console
    from rich.text import Text

    say(f"{answer['id']}: {_said(answer)}")
    for item in answer.get("evidence", []):
        label = f"  {item['label']}" if "labels" in answer else ""
        say(f"  {item['score']:+.4f}{label}  {cut(' '.join(item['text'].split()), _WIDEST)}")
    if len(text) <= _SHOWN:
        styles, large = {False: "bold red", True: "bold green"}, _MARKED * _largest(answer, text)
        scored = [(piece, score if abs(score) >= large else 0.0) for piece, score in _pieces(answer, text)]
        pieces = [(printable(piece), styles[score > 0] if score else "") for piece, score in scored]
        with writing_results():
            Console(markup=False, emoji=False, highlight=False).print(Text.assemble("  ", *pieces))


def _section(answer: dict[str, Any], text: str) -> str:
    """Return a document of the page."""
    largest, pieces = _largest(answer, text) or 1.0, []
    for piece, score in _pieces(answer, text):
        colour = f"rgba({'0, 150, 0' if score > 0 else '210, 0, 0'}, {0.1 + 0.5 * abs(score) / largest:.2f})"
        marked = f'<mark title="{score:+.4f}" style="background: {colour}">{html.escape(piece)}</mark>'
        pieces.append(marked if score else html.escape(piece))
    return f"<h2>{html.escape(str(answer['id']))}: {html.escape(_said(answer))}</h2>\n<p>{''.join(pieces)}</p>"


def _said(answer: dict[str, Any]) -> str:
    """Return an answer in words."""
    if "error" in answer:
        return f"error: {answer['error']}"
    of = f", by {answer['by']}"
    if "labels" in answer:
        return (", ".join(answer["labels"]) or "no label") + of
    return f"{answer['label']} ({answer['probability']:.4f}){of}" if "label" in answer else f"{answer['value']}{of}"


def _largest(answer: dict[str, Any], text: str) -> float:
    return max(abs(score) for _, score in _pieces(answer, text))


def _pieces(answer: dict[str, Any], text: str) -> Iterator[tuple[str, float]]:
    """Yield a text in pieces, each with its score for the first label that is explained; 0 beside the evidence."""
    evidence, end = answer.get("evidence", []), 0
    spans = [item for item in evidence if "of" not in item and item.get("label") == evidence[0].get("label")]
    for item in sorted(spans, key=lambda item: item["start"]):
        yield text[end : item["start"]], 0.0
        yield text[item["start"] : item["end"]], item["score"]
        end = item["end"]
    yield text[end:], 0.0
