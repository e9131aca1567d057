"""Write the records of finished runs down as one compressed JSON and one Markdown table.

    python -m research.summarise_runs runs research/records/NAME

Unfinished runs are listed, not dropped; a candidate of a sweep that was not selected has no test. Folders of this
machine do not enter the result.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from foretoken.files import write_text
from foretoken.training.run.record import read_record
from research.archive import write_records

METRICS = {
    "accuracy": "accuracy",
    "ROC AUC": "roc_auc",
    "F1": "f1",
    "F1 (macro)": "f1_macro",
    "Matthews": "matthews",
    "ECE": "ece",
}
COLUMNS = ("data", "method", "rate", "seeds", "trainable %", "adapter", "head", *METRICS, "s/step")
KEPT = ("seed", "labels", "max_length", "parameters", "epochs", "best", "steps", "validation", "test", "scaling")


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """Keep what others can compare: recipe without folders, data sizes, parameters, curves, metrics, timings."""
    recipe = {key: record["recipe"][key] for key in ("model", "lengthen", "max_length", "data", "method", "training")}
    kept = {key: record.get(key) for key in (*KEPT, "timings", "memory", "versions")}
    sizes = {
        split: {key: value for key, value in counts.items() if key != "length_quantiles"}
        for split, counts in (record.get("documents") or {}).items()
    }
    said = {"name": record["name"], "status": record["status"], "date": record["started"][:10], "recipe": recipe}
    return said | {"documents": sizes} | kept


def grouped(runs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Put runs together that differ in the seed or the fold only."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        recipe = run["recipe"] | {
            "training": run["recipe"]["training"] | {"seed": None},
            "data": run["recipe"]["data"] | {"fold": None},
        }
        groups.setdefault(repr(recipe), []).append(run)
    return list(groups.values())


def spread(runs: list[dict[str, Any]], metric: str) -> str:
    """Mean over seeds and folds, with the standard deviation where there are several."""
    values = [run["test"][metric] for run in runs if metric in (run["test"] or {})]
    if not values:
        return ""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def row(runs: list[dict[str, Any]]) -> list[str]:
    """One line of the table."""
    first = runs[0]
    data = first["recipe"]["data"]
    counted, rate = first["parameters"], first["recipe"]["training"]["learning_rate"]
    steps = [found for run in runs if (found := (run["timings"] or {}).get("step_seconds_median")) is not None]
    return [
        data.get("task") or data.get("path"),
        first["recipe"]["method"]["name"],
        "" if rate == "auto" else f"{rate:g}",  # a baseline has none
        ", ".join(dict.fromkeys(str(run["seed"]) for run in runs)),
        f"{counted['percent']:.2f}",
        f"{counted['adapter']:,}",
        f"{counted['head']:,}",
        *(spread(runs, metric) for metric in METRICS.values()),
        f"{mean(steps):.2f}" if steps else "",
    ]


def markdown(runs: list[dict[str, Any]]) -> str:
    """Return the table of the finished runs, and a list of the others."""
    finished = [run for run in runs if run["status"] == "finished"]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row(group) for group in grouped(finished))]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"
    others = [f"- {run['name']}: {run['status']}" for run in runs if run["status"] != "finished"]
    return text + ("\nNot finished:\n\n" + "\n".join(others) + "\n" if others else "")


def processor() -> str:
    """Return what the processor calls itself."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="folder that holds run folders, at any depth")
    parser.add_argument("result", type=Path, help="path of the result without its ending")
    options = parser.parse_args()
    folders = sorted(file.parent for file in options.runs.rglob("run.json"))
    records = [record for folder in folders if (record := read_record(folder)) is not None]
    runs = [summary(record) for record in records]
    write_records(options.result.with_suffix(".json.gz"), {"processor": processor(), "runs": runs})
    write_text(options.result.with_suffix(".md"), markdown(runs))
    print(markdown(runs))


if __name__ == "__main__":
    main()
