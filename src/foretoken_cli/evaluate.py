"""`foretoken evaluate`: measure an adapter on a labelled file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from foretoken.limits import MOST_BINS
from foretoken_cli.console import described, table
from foretoken_cli.inference import add_column_options, add_inference_options, check_result, given_columns, load
from foretoken_cli.parser import Parser, whole


def run(arguments: Sequence[str]) -> int:
    """Print the metrics of an adapter on a file; write its predictions if asked."""
    options = _parser().parse_args(arguments)
    from foretoken.data.load import load_examples
    from foretoken.data.options import DataOptions
    from foretoken.inference.evaluate import evaluate

    predictor = load(options)
    check_result(options.predictions, predictor, options, options.file)
    problem = replace(predictor.problem, n_bins=options.ece_bins)
    data = DataOptions(path=options.file, **{**predictor.columns, **given_columns(options)})
    documents = load_examples(options.file, data, problem.name, problem.labels)
    metrics = evaluate(
        replace(predictor, problem=problem),
        documents,
        batch_size=options.batch_size,
        tokens_per_batch=options.tokens_per_batch,
        scaled=not options.unscaled,
        predictions=options.predictions,
    )
    rows = [[name, _number(value)] for name, value in metrics.items() if isinstance(value, int | float)]
    table(("metric", "value"), rows)
    return 0


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def _parser() -> Parser:
    parser = Parser(prog="foretoken evaluate", description=described(__doc__))
    parser.add_argument("folder", help="run folder, adapter folder or model folder")
    parser.add_argument("file", help="labelled file (csv, tsv, jsonl, json, parquet) or folder of label folders")
    add_column_options(parser)
    parser.add_argument("--label-column", help="column of the label (default: as in training)")
    add_inference_options(parser)
    parser.add_argument(
        "--ece-bins", type=whole(1, MOST_BINS), default=15, help="bins of the calibration error (default: 15)"
    )
    parser.add_argument("--predictions", type=Path, help="write the predictions to this parquet file")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of predictions where it exists")
    return parser
