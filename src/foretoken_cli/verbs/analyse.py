"""`foretoken analyse`: measure how much of its attention a model gives to a trained prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from foretoken.limits import MOST_DOCUMENTS
from foretoken.options import Values, option
from foretoken_cli.console import described, table
from foretoken_cli.parser import parse

FIGURES = ("attention_mass", "selective_gates", "selective_curves")


@dataclass(frozen=True)
class AnalyseCommand:
    """The command line of `foretoken analyse`."""

    run: Path = option("folder of a finished run whose method has a prefix")
    input: str | None = option("texts to measure on (a file or folder); default: the run's validation split", None)
    text_column: str | None = option("column of the text in a file (default: as in training)", None)
    documents: int = option("documents at most, spread evenly over the texts", 32, at_least=1, at_most=MOST_DOCUMENTS)
    output: Path | None = option("folder of the figures (default: analysis/ in the run)", None, short="-o")


def run(words: Sequence[str]) -> int:
    """Write `analysis.json` into the run, print it per layer, and draw it."""
    options = parse(AnalyseCommand, "analyse", words, described(__doc__))
    folder = options.run
    from foretoken.files import check_writable
    from foretoken.inference.analysis import analyse_run
    from foretoken.outputs import refuse_foreign
    from foretoken.report.figures.svg import SVG

    output = options.output or folder / "analysis"
    check_writable(output)
    for name in FIGURES:
        refuse_foreign(output / f"{name}.svg", SVG, beside=[output / f"{name}.png"])
    values = analyse_run(folder, documents=options.documents, file=options.input, text_column=options.text_column)
    _draw(folder, output)
    _print(values)
    return 0


def _draw(folder: Path, output: Path) -> None:
    """Write each figure that the analysis has something for, as SVG and PNG."""
    from foretoken.files import atomic_file, write_text
    from foretoken.report.figures import FIGURES as ALL
    from foretoken.report.figures import to_png, to_svg
    from foretoken.report.runs.groups import collect
    from foretoken.report.runs.records import find_runs

    results = collect(find_runs([folder]))
    for name in FIGURES:
        figure = ALL[name].draw(results)
        if figure is None:
            continue
        write_text(output / f"{name}.svg", to_svg(figure, name, title=ALL[name].title))
        with atomic_file(output / f"{name}.png") as temporary:
            temporary.write_bytes(to_png(figure))


def _print(values: Values) -> None:
    header = ["attention", "prefix, mean of heads", "least", "most"]
    rows = [
        [name, *(f"{share:.4f}" for share in (fmean(heads), min(heads), max(heads)))]
        for name, heads in zip(values["attentions"], values["attention_mass"], strict=True)
    ]
    if gates := values.get("selective", {}).get("gates"):
        header.append("mask")
        for row, heads in zip(rows, gates, strict=False):
            row.append(f"{fmean(heads):.4f}")
    table(header, rows)
