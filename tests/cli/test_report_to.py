"""`training.report_to`: what is logged reaches the tracker, whose package may be missing."""

import json
import sys

import pytest

FAKE = '''
"""Stands for tensorboardX: writes what it is given to one file."""
import json, pathlib

class SummaryWriter:
    def __init__(self, log_dir):
        self.file = pathlib.Path(log_dir, "scalars.jsonl")
        self.file.parent.mkdir(parents=True)

    def add_scalar(self, name, value, step):
        with self.file.open("a") as file:
            file.write(json.dumps([name, value, step]) + "\\n")

    def __getattr__(self, name):
        return lambda *args, **kwargs: None
'''


def test_losses_and_metrics_are_sent_and_kept(tiny, cli, record, tmp_path, monkeypatch):
    (tmp_path / "tensorboardX.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    options = {"report_to": "tensorboard", "max_steps": 4, "eval_every": 2}
    method = {"name": "selective-prefix-tuning", "num_virtual_tokens": 3}
    done = cli("train", tiny.recipe(tmp_path / "recipe.yaml", method=method, training=options))
    assert done.code == 0, done.err
    file = tmp_path / "runs" / "tensorboard" / "run" / "scalars.jsonl"
    sent = {(name, step): value for name, value, step in map(json.loads, file.read_text().splitlines())}
    epochs = record(tmp_path / "runs" / "run")["epochs"]
    for epoch in epochs:
        step = epoch["step"]
        assert sent["train/loss", step] == pytest.approx(epoch["train_loss"])
        assert sent["train/auxiliary_loss", step] == pytest.approx(epoch["auxiliary_loss"])
        assert sent["eval/f1_macro", step] == pytest.approx(epoch["validation"]["f1_macro"])
    assert [epoch["step"] for epoch in epochs] == [2, 4]


def test_a_missing_package_is_one_line(tiny, refused, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = refused("train", tiny.recipe(tmp_path / "recipe.yaml", training={"report_to": "wandb"}))
    assert said.endswith("training.report_to: wandb is not installed: pip install wandb, or leave it out")
