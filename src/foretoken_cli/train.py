"""`foretoken train`: run one or more recipes and print one table of their results."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from foretoken.errors import ForetokenError
from foretoken.processes import is_main_process
from foretoken_cli.console import fail, say, table
from foretoken_cli.parser import Parser

_SHOWN = {
    "classification": ("accuracy", "f1_macro", "ece"),
    "regression": ("pearson", "spearman", "mse"),
    "multiple-choice": ("accuracy", "ece", "nll"),
    "token-classification": ("precision", "recall", "f1"),
    "candidates": ("accuracy", "ece", "nll"),
    "generation": ("bleu", "rougeL", "loss"),
}
_SHORT = {
    "f1_macro": "F1 (macro)",
    "f1": "F1",
    "ece": "ECE",
    "nll": "NLL",
    "mse": "MSE",
    "bleu": "BLEU",
    "rougeL": "ROUGE-L",
}
_KEYS = """
Any key of a recipe can be set after the recipes, and wins over the file:
  foretoken train recipe.yaml --training.learning_rate 1e-3 --method.num_virtual_tokens=4

keys of a recipe:
"""


def run(arguments: Sequence[str]) -> int:
    """Train; exit code 2 if any recipe failed."""
    recipes, rest = _leading_words(arguments)
    options, overrides = _parser(rest).parse_known_args(rest)
    if not recipes:
        fail("name at least one recipe file before the options: foretoken train recipe.yaml")
        return 2
    done: list[tuple[str, dict[str, Any]]] = []
    try:
        failed = _run_all(recipes, overrides, done, options)
    finally:
        _print(done)
    return 2 if failed else 0


def _run_all(
    recipes: Sequence[str],
    overrides: Sequence[str],
    done: list[tuple[str, dict[str, Any]]],
    options: argparse.Namespace,
) -> bool:
    """Run the recipes in turn; of several, one that fails is said and the others go on."""
    if len(recipes) == 1:
        done.append(_run_one(recipes[0], overrides, options))
        return False
    failed = False
    for path in recipes:
        try:
            done.append(_run_one(path, overrides, options))
        except ForetokenError as error:
            fail(str(error) if path in str(error) else f"{path}: {error}")
            failed = True
        except Exception:  # a defect of ours or a full memory: the other recipes are still worth running
            fail(f"{path}: failed unexpectedly")
            traceback.print_exc()
            failed = True
    return failed


def _run_one(path: str, overrides: Sequence[str], options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    from foretoken.training.recipe.recipe import load_recipe

    recipe = load_recipe(path, overrides)
    from foretoken.training.run.train import train

    return str(recipe.run_folder), train(recipe, restart=options.restart, accept_changed=options.accept_changed)


def _print(done: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Print one line a run, and below where the runs are: their names are long, and terminals 80 columns wide."""
    if done and is_main_process():
        names = _metrics([record for _, record in done])
        header = ("method", "trainable %", *(_SHORT.get(name, name.replace("_", " ")) for name in names), "s/step")
        table(header, [_row(record, names) for _, record in done])
        say()
        say(f"adapter, record and predictions: {', '.join(folder for folder, _ in done)}")


def _metrics(done: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the table shows: a few metrics of every problem among the runs, and what they were selected by."""
    names = [name for record in done for name in (*_SHOWN[record["problem"]], record["recipe"]["training"]["metric"])]
    return [name for name in dict.fromkeys(names) if any(name in record["test"] for record in done)]


def _row(record: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    measured, step = record["test"], record["timings"]["step_seconds_median"]
    return [
        record["recipe"]["method"]["name"],
        f"{record['parameters']['percent']:.3f}",
        *("" if measured.get(name) is None else f"{measured[name]:.4f}" for name in names),
        "" if step is None else f"{step:.3f}",
    ]


def _leading_words(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the recipes from what follows the first option."""
    count = next((index for index, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return list(arguments[:count]), list(arguments[count:])


def _parser(rest: Sequence[str]) -> Parser:
    wants_help = "-h" in rest or "--help" in rest
    parser = Parser(
        prog="foretoken train",
        usage="foretoken train RECIPE [RECIPE ...] [--restart] [--accept-changed] [--KEY VALUE ...]",
        description="Run recipes in turn. A killed run goes on where it was; a finished one is not repeated.",
        epilog=_KEYS + _key_help() if wants_help else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--restart", action="store_true", help="begin anew; an earlier run goes once the new one has begun"
    )
    parser.add_argument(
        "--accept-changed", action="store_true", help="go on though data, model or versions have changed since the kill"
    )
    return parser


def _key_help() -> str:
    from foretoken.options import help_lines
    from foretoken.training.recipe.recipe import Recipe

    return "\n".join(f"  {line}" for line in help_lines(Recipe))
