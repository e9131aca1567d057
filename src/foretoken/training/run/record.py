"""The record of a run, `run.json`: what was asked, on what, what came out; written whole at every change."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from foretoken import __version__
from foretoken.errors import RunRecordError, SaveError, quoted
from foretoken.files import write_json
from foretoken.malloc import malloc_is_tuned
from foretoken.options import flatten, to_dict
from foretoken.processes import is_main_process as is_main_process
from foretoken.processes import num_processes as processes
from foretoken.training.recipe.recipe import Recipe
from foretoken.training.run.folder import RECORD as FILE

log = logging.getLogger(__name__)
RUNNING, FINISHED, INTERRUPTED, FAILED, PRUNED = "running", "finished", "interrupted", "failed", "pruned"
_LIBRARIES = ("torch", "transformers", "peft", "datasets", "accelerate")
_FREE = ("output", "name", "training.num_threads")  # may differ between the two halves of a resumed run
# what is read of a record, and what it must be: a dotted key, its type, whether only finished runs have it
_TOLD: tuple[tuple[str, Any, bool], ...] = (
    ("status", str, False),
    ("recipe", dict, False),
    ("recipe.method.name", str, True),
    ("recipe.training.metric", str, True),
    ("problem", str, True),
    ("parameters.percent", (int, float), True),
    ("timings.step_seconds_median", (int, float, type(None)), True),
    ("validation", dict, True),
)
_ABSENT = object()


class Pruned(Exception):  # noqa: N818 - no error: a sweep gives up a run that has no hope
    """Raised by a callback of a run to end it early."""


@dataclass
class RunRecord:
    """The values of `run.json`, and the folder they are written to."""

    folder: Path
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, recipe: Recipe) -> RunRecord:
        """Return a record that knows the recipe and the machine."""
        return cls(
            recipe.run_folder,
            {
                "status": RUNNING,
                "name": recipe.run_folder.name,
                "started": _time(),
                "recipe": plain(recipe),
                "seed": recipe.training.seed,
                "versions": versions(),
                "hardware": hardware(),
            },
        )

    def update(self, **values: Any) -> None:
        """Change some values and write the whole record."""
        self.values |= values
        if is_main_process():
            write_json(self.folder / FILE, self.values)

    def end(self, status: str, error: BaseException | None = None) -> None:
        """Note how the run ended; a full disk must not hide why it did."""
        notes = {"status": status, "ended": _time()} | ({"error": str(error)} if error else {})
        if status == FINISHED:
            self.update(**notes)
            return
        with suppress(SaveError):
            self.update(**notes)


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return what a run folder's record says; None where there is none that can be read."""
    try:
        return checked_record(folder)
    except RunRecordError:
        return None


def checked_record(folder: Path) -> dict[str, Any] | None:
    """Return what a run folder's record says; None where there is none.

    Raises:
        RunRecordError: it is cut short or damaged.
    """
    file = folder / FILE
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RunRecordError(_damaged(file, " ".join(str(error).split())[:100])) from error
    wrong = next((key for key, kind, late in _TOLD if not _is_told(values, key, kind, late=late)), None)
    if wrong is not None:
        raise RunRecordError(_damaged(file, f"{wrong} is missing or of another type"))
    return values


def plain(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as JSON knows it."""
    return json.loads(json.dumps(to_dict(recipe)))


def differing_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys, with both values, in which two recipes differ."""
    old, new = flatten(before), flatten(now)
    keys = [key for key in {**old, **new} if key not in _FREE]
    return [
        f"{key}: {quoted(old.get(key, 'nothing'))} in the folder, {quoted(new.get(key, 'nothing'))} now"
        for key in keys
        if old.get(key, _ABSENT) != new.get(key, _ABSENT)
    ]


def history(log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry per evaluation: step, epoch, training loss since the last one, validation metrics."""
    entries: dict[int, dict[str, Any]] = {}
    for line in log:
        entry = entries.setdefault(line["step"], {"step": line["step"], "epoch": line["epoch"]})
        if "loss" in line:
            kept = {"loss": "train_loss", "auxiliary_loss": "auxiliary_loss", "learning_rate": "learning_rate"}
            entry |= {name: line[key] for key, name in kept.items() if key in line}
        if "eval_loss" in line:
            entry["validation"] = {
                key.removeprefix("eval_"): value for key, value in line.items() if key.startswith("eval_")
            }
    return [entry for entry in entries.values() if len(entry) > 2]


def versions() -> dict[str, str]:
    """Return the versions of what a result depends on."""
    return {
        "foretoken": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def hardware() -> dict[str, Any]:
    """Return what a timing depends on."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "processes": processes(),
        "malloc_tuned": malloc_is_tuned(),
    }


def _is_told(values: Any, key: str, kind: Any, *, late: bool) -> bool:
    if late and values["status"] != FINISHED:
        return True
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return isinstance(values, kind)


def _damaged(file: Path, reason: str) -> str:
    return f"{file} is damaged ({reason}); put it back from a copy, or begin anew with --restart"


def _time() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class Live(TrainerCallback):
    """Keep `run.json` current: the history so far after every evaluation, and one line of it in the log."""

    def __init__(self, record: RunRecord, metric: str) -> None:
        self.record = record
        self.metric = metric

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the history and say its last entry."""
        entries = history(state.log_history)
        self.record.update(epochs=entries)
        last = entries[-1]
        numbers = {"train loss": last.get("train_loss"), self.metric: last["validation"].get(self.metric)}
        said = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items() if value is not None)
        log.info("step %d, epoch %.2f: %s", last["step"], last["epoch"], said)
