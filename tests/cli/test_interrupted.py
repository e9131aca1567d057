"""Ctrl-C: one line that says how to go on, and exit code 130."""

import os
import signal
import subprocess
import sys
import time

import pytest

from foretoken.training.run.record import RunRecord
from foretoken_cli import INTERRUPTED, VERBS, main

SAID = {"train": "goes on from the last checkpoint", "predict": "nothing was written, and the same command begins anew"}


@pytest.mark.parametrize("verb", VERBS)
def test_ctrl_c_is_one_line_in_every_verb(verb, monkeypatch, capsys):
    def run(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"foretoken_cli.verbs.{verb}.run", run)
    assert main([verb]) == INTERRUPTED
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("foretoken: error: interrupted; ")
    assert SAID.get(verb, SAID["predict"]) in lines[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_run_that_is_told_to_end_has_not_failed(error, tmp_path):
    """Ray makes a SystemExit of SIGTERM when the command, or the machine, is taken away from its workers."""
    record = RunRecord(tmp_path, {})
    with pytest.raises(error), record.noting_the_end():
        raise error
    assert record.values["status"] == "interrupted"


def test_a_signal_during_the_first_imports_is_one_line(tmp_path):
    """The process waits in the import of a module that never ends; there the signal meets it."""
    (tmp_path / "yaml.py").write_text("open('here', 'w').close()\nimport time\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "foretoken", "train", "--model", "m", "--method", "lora"]
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs in the background ignore it
    )
    while not (tmp_path / "here").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == INTERRUPTED
    assert said.startswith("foretoken: error: interrupted; ")
    assert len(said.splitlines()) == 1
