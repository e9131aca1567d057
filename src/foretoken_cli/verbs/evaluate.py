"""`foretoken evaluate`: measure an adapter on a labelled file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from foretoken.limits import MOST_BINS
from foretoken.options import option
from foretoken_cli.console import described, table
from foretoken_cli.inference import InferenceOptions
from foretoken_cli.parser import parse


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(InferenceOptions):
    """The command line of `foretoken evaluate`."""

    file: str = option("labelled file (csv, tsv, jsonl, json, parquet) or folder of label folders")
    label_column: str | None = option("column of the label (default: as in training)", None)
    bad_rows: Literal["error", "drop"] = option(
        "rows that cannot be used are an error, or left out and counted", "error"
    )
    ece_bins: int = option("bins of the calibration error", 15, at_least=1, at_most=MOST_BINS)
    output: Path | None = option("parquet file to write the predictions to", None, short="-o")

    @property
    def columns(self) -> dict[str, Any]:
        """The given columns, by the keys of a recipe."""
        return super().columns | ({"label_column": self.label_column} if self.label_column else {})


def run(words: Sequence[str]) -> int:
    """Print the metrics of an adapter on a file; write its predictions if asked."""
    options = parse(EvaluateCommand, "evaluate", words, described(__doc__))
    from foretoken.data.load import load_examples
    from foretoken.data.options import DataOptions
    from foretoken.inference.evaluate import predicted
    from foretoken.training.run.results import write_predictions

    predictor = options.load()
    options.check_result(options.output, predictor, options.file, ".parquet")
    problem = replace(predictor.problem, n_bins=options.ece_bins)
    data = DataOptions(path=options.file, **options.columns_for(predictor), bad_rows=options.bad_rows)
    documents = load_examples(options.file, data, problem.name, problem.labels)
    outcome = predicted(
        replace(predictor, problem=problem),
        documents,
        batch_size=options.batch_size,
        tokens_per_batch=options.tokens_per_batch,
        scaled=not options.unscaled,
    )
    if options.output is not None:
        write_predictions(options.output, {options.output.stem: outcome})
    rows = [[name, _number(value)] for name, value in outcome.metrics().items() if isinstance(value, int | float)]
    table(("metric", "value"), rows)
    return 0


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4f}"
