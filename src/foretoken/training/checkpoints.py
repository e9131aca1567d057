"""Checkpoints of a run: which ones are whole, and which one to go on from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

STATE = "trainer_state.json"
_BESIDES = ("optimizer.pt", "scheduler.pt")


def last_complete(folder: Path) -> Path | None:
    """Return the newest checkpoint that was written to its end; half-written ones are passed over."""
    found = sorted(folder.glob("checkpoint-*"), key=_step, reverse=True)
    return next((checkpoint for checkpoint in found if is_complete(checkpoint)), None)


def is_complete(checkpoint: Path) -> bool:
    """Tell whether every file of a checkpoint is there and readable (its state is written last)."""
    state = read_state(checkpoint)
    return (
        state is not None
        and state.get("global_step") == _step(checkpoint)
        and all((checkpoint / name).is_file() for name in _BESIDES)
        and any((checkpoint / name).is_file() for name in _rng_names(checkpoint))
        and any(True for _ in _weights(checkpoint))
        and all(_opens(file) for file in _weights(checkpoint))
    )


def read_state(checkpoint: Path) -> dict[str, Any] | None:
    """Return the Trainer's state in a checkpoint; None where there is none or it is cut short."""
    try:
        return json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def is_over(checkpoint: Path) -> bool:
    """Tell whether training had stopped when the checkpoint was written, so that only the end is missing."""
    state = read_state(checkpoint) or {}
    control = state.get("stateful_callbacks", {}).get("TrainerControl", {})
    stopped = control.get("attributes", {}).get("should_training_stop") or control.get("args", {}).get(
        "should_training_stop"
    )
    return bool(stopped) or state.get("global_step", 0) >= state.get("max_steps", float("inf"))


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def _rng_names(checkpoint: Path) -> Iterator[str]:
    return (file.name for file in checkpoint.glob("rng_state*.pth"))


def _weights(checkpoint: Path) -> Iterator[Path]:
    return checkpoint.glob("**/*.safetensors")


def _opens(file: Path) -> bool:
    """Open the header; safetensors compares it with the size of the file."""
    try:
        with safe_open(file, framework="pt"):
            return True
    except (OSError, SafetensorError):
        return False
