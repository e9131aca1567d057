"""Killed at any write, or with a full disk there, a command that is given again ends as if nothing had happened."""

import shutil

import pytest
import yaml

from support.faults.crashes import Case

KILLS = ("kill-before", "kill-after", "short")
SIGNALS = ("int", "term")
DISKS = ("full", "readonly", "eio")
CASES = ("train", "whole-model", "lengthen", "longformer", "fuse", "predict", "evaluate", "report", "export", "sweep")
# how many calls of a case are disturbed: in the default suite, and in the slow one
DEFAULT = {"train": 3, "longformer": 1, "fuse": 1, "predict": 1, "evaluate": 1, "report": 1, "sweep": 1}
SLOW = {
    "train": 70,
    "whole-model": 20,
    "lengthen": 10,
    "longformer": 30,
    "fuse": 25,
    "predict": 5,
    "evaluate": 5,
    "report": 20,
    "export": 15,
    "export-shared": 6,
    "sweep": 40,
    "sweep-workers": 12,
}


@pytest.fixture(scope="module")
def cases(tiny_files, crashes, tmp_path_factory):
    """Return a case by its name; each starts from files that were made once."""
    made = tmp_path_factory.mktemp("made")
    training = {"max_steps": 6, "eval_every": 2}
    projected = {"name": "prefix-tuning", "num_virtual_tokens": 2, "prefix_projection": True, "encoder_hidden_size": 4}
    tiny_files.recipe(made, method=projected, training={"max_steps": 2})
    for words in (("train", "recipe.yaml"), ("report", "runs", "-o", "report")):
        assert crashes.forked(*words, cwd=made).code == 0

    def train(folder, **changes):
        tiny_files.recipe(folder, training=training, **changes)

    def lengthened(folder):
        tiny_files.recipe(folder, lengthen={"max_length": 128, "attention_window": 8}, training={"max_steps": 2})

    def run_alone(folder):
        shutil.copytree(made / "runs", folder / "runs")

    def with_older(folder):
        shutil.copytree(made, folder, dirs_exist_ok=True)
        (folder / "report" / "results.csv").write_text("older")
        (folder / "out").write_text("older")

    def nothing(folder):
        """Start in an empty folder."""

    def sweep(folder):
        base = {key: value for key, value in tiny_files.values().items() if key not in ("output", "name")}
        values = {"recipe": base, "output": "sweeps", "compare": {"method": ["lora", "prefix-tuning"]}, "seeds": [0]}
        (folder / "sweep.yaml").write_text(yaml.safe_dump(values))

    workers = ("sweep", "sweep.yaml", "--workers", "2")
    lengths = ("--max-length", "128", "--attention-window", "8")
    export = ("export", "runs/run", "-o", "exported")

    def to_out(verb):
        return (verb, "runs/run", "--overwrite", "-o", "out")

    found = {
        "train": Case("train", ("train", "recipe.yaml"), train),
        "whole-model": Case("whole-model", ("train", "recipe.yaml"), lambda folder: train(folder, method="full")),
        "lengthen": Case(
            "lengthen", ("lengthen", str(tiny_files.model), "-o", "long", *lengths), nothing, output="long"
        ),
        "longformer": Case("longformer", ("train", "recipe.yaml"), lengthened),
        "fuse": Case("fuse", ("fuse", "runs/run", "-o", "fused"), run_alone, output="fused"),
        "predict": Case("predict", (*to_out("predict"), "lunch"), with_older, output="out"),
        "evaluate": Case("evaluate", (*to_out("evaluate"), str(tiny_files.data)), with_older, output="out"),
        "report": Case("report", ("report", "runs", "-o", "report"), with_older, output="report"),
        "export": Case("export", (*export, "--to", "torch"), run_alone, output="exported"),
        "export-shared": Case("export-shared", (*export, "--shared"), run_alone, output="exported"),
        "sweep": Case("sweep", ("sweep", "sweep.yaml"), sweep),
        "sweep-workers": Case("sweep-workers", workers, sweep, in_workers=True),
    }

    return found.__getitem__


def disturb(crashes, case, modes, number, of):
    """Disturb the number-th of so many calls, evenly spread over the case; the modes take turns."""
    calls = crashes.undisturbed(case).calls
    return crashes.disturbed(case, modes[number % len(modes)], int((number + 0.5) / of * len(calls)))


def numbered(counts):
    return [
        pytest.param(name, number, id=f"{name}-{number}") for name, count in counts.items() for number in range(count)
    ]


def test_what_is_compared(crashes, cases):
    """The library sees the writes of Python, torch and safetensors."""
    trained = crashes.undisturbed(cases("train"))
    for written in ("trainer_state.json", "optimizer.pt", "predictions.parquet", "run.json", "checksums.json"):
        assert any(call.endswith(f"/{written}") for call in trained.calls), written
    assert {"adapter/adapter_model.safetensors", "run.json"} <= {
        name.removeprefix("runs/run/") for name in trained.left
    }
    assert not any(".foretoken" in name or "checkpoint" in name for name in trained.left)


@pytest.mark.covering
@pytest.mark.parametrize(("name", "number"), numbered(DEFAULT))
def test_killed_at_a_write_and_given_again(name, number, crashes, cases):
    disturb(crashes, cases(name), KILLS, number, DEFAULT[name])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), numbered(SLOW))
def test_killed_at_any_write_and_given_again(name, number, crashes, cases):
    disturb(crashes, cases(name), KILLS, number, SLOW[name])


def test_a_signal_in_the_middle_of_training(crashes, cases):
    disturb(crashes, cases("train"), ["int"], 1, 2)


@pytest.mark.parametrize(
    "file", ["optimizer.pt", *(pytest.param(f, marks=pytest.mark.slow) for f in ("checkpoints", "scheduler.pt"))]
)
def test_a_disk_that_is_full_from_the_last_write_of_a_file_on(file, crashes, cases):
    """torch has other words for each, and none of them is of a disk; the checkpoints of before are gone on from."""
    calls = crashes.undisturbed(cases("train")).calls
    wanted = [
        at for at, call in enumerate(calls) if call.endswith(f"/{file}") and call.split()[1] in ("mkdir", "write")
    ]
    assert crashes.disturbed(cases("train"), "full", wanted[-1]).code == 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*SIGNALS, *DISKS])
@pytest.mark.parametrize(("name", "number"), numbered(dict.fromkeys(CASES, 6)))
def test_a_signal_or_a_disk_that_fails_at_any_write(name, number, mode, crashes, cases):
    disturb(crashes, cases(name), [mode], number, 6)
