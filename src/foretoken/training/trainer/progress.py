"""What a run says while it works, and how long its steps take."""

from __future__ import annotations

import logging
import statistics
import sys
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from foretoken.files import JsonObject

log = logging.getLogger(__name__)
_KEPT = 1000  # step times kept for the median


def progress_bar(description: str) -> Progress:
    """Return a bar on stderr; off a terminal it draws nothing."""
    return Progress(
        TextColumn(description),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(file=sys.stderr),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


class ProgressBar(TrainerCallback):
    """A progress bar over the optimizer steps, with the last loss and metric beside it."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.measured = 0
        self.progress: Progress | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Draw the bar, from the step that a resumed run starts at."""
        self.progress = progress_bar("training")
        self.progress.start()
        self.progress.add_task("", total=state.max_steps, completed=state.global_step, note="")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Move the bar."""
        self._update(completed=state.global_step)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Show the newest numbers."""
        newest = _newest(state, self.metric)
        self._update(note="  ".join(f"{name} {value:.4f}" for name, value in newest.items()))

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Show that an evaluation is going on; it may take as long as the steps between two of them."""
        self.measured += 1
        self._update(note=f"measuring, batch {self.measured}")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Count from the start at the next evaluation, and show the newest numbers again."""
        self.measured = 0
        self.on_log(args, state, control)

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: object, **_: object
    ) -> None:
        """Count from the start at the next evaluation."""
        self.measured = 0

    def close(self) -> None:
        """Take the bar away; also after an error, or the terminal's cursor stays hidden."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def _update(self, *, completed: int | None = None, note: str | None = None) -> None:
        if self.progress is not None:
            fields = {} if note is None else {"note": note}
            self.progress.update(self.progress.task_ids[0], completed=completed, **fields)  # type: ignore[arg-type]


class StepTimes(TrainerCallback, ExportableState):
    """Wall time of the optimizer steps; kept in checkpoints, so that a resumed run counts them all."""

    def __init__(self) -> None:
        self.recent: list[float] = []
        self.total = 0.0
        self.steps = 0
        self._began = 0.0

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Start the clock."""
        self._began = _now()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Stop the clock."""
        seconds = _now() - self._began
        self.recent = [*self.recent[-(_KEPT - 1) :], seconds]
        self.total += seconds
        self.steps += 1

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Note beside the evaluation how long training took so far; checkpoints keep the log, so it is told once."""
        state.log_history[-1]["train_seconds"] = self.total

    def state(self) -> JsonObject:
        """Return what a checkpoint keeps."""
        return {"args": {}, "attributes": {"recent": self.recent, "total": self.total, "steps": self.steps}}

    @property
    def median(self) -> float | None:
        """Median seconds of the last thousand steps."""
        return statistics.median(self.recent) if self.recent else None


class LogAtEvaluation(TrainerCallback):
    """Log the loss at every evaluation: also at the last step, when it is no multiple of the logging steps."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Ask for the loss together with the evaluation."""
        if control.should_evaluate:
            control.should_log = True


def _newest(state: TrainerState, metric: str) -> dict[str, float]:
    found = {}
    for entry in state.log_history[-4:]:
        for key, name in (("loss", "loss"), (f"eval_{metric}", metric)):
            if key in entry:
                found[name] = entry[key]
    return found


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
