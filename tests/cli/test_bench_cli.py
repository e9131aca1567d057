"""`foretoken bench`, from the command line to its files."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

TINY = ("--quick", "--shape", "tiny", "--rounds", "1", "--threads", "1", "--dtype", "float32")


@pytest.mark.slow
def test_a_benchmark_prints_its_report_and_leaves_its_files(cli, tmp_path):
    result = cli("bench", "attention", *TINY, "--output", tmp_path)
    assert result.code == 0, result.err
    assert "| 16 | float32 | tuned | forward | block |" in result.out
    assert result.out.count("not measured in this run") >= 18
    (file,) = tmp_path.glob("attention-quick-*.json")
    assert json.loads(file.read_text())["status"] == "finished"
    assert file.with_suffix(".md").read_text().startswith("# Benchmarks")
    again = cli("bench", "report", file, "--output", tmp_path)
    assert again.out == result.out
    assert (tmp_path / "report.md").exists()


def test_a_part_that_fails_makes_it_fail(cli, tmp_path, monkeypatch):
    from foretoken.bench.run import runner

    monkeypatch.setattr(
        runner,
        "run_part",
        lambda part, notify: {"title": part.title, "dtype": "float32", "settings": {}, "error": "out of memory"},
    )
    result = cli("bench", "attention", *TINY, "--output", tmp_path)
    assert result.code == 2
    assert "foretoken: error: n 16, float32, tuned allocator: out of memory" in result.err
    assert "**failed**: out of memory" in result.out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "the following arguments are required"),
        (("atention",), "invalid choice: 'atention'"),
        (("encoder", "--layers", "0"), "--layers: got '0', expected a whole number from 1"),
        (("encoder", "--layers", "two"), "--layers: got 'two', expected a whole number from 1"),
        (("encoder", "--engine", "blok"), "did you mean 'block'"),
        (("encoder", "--lengths", "x.txt"), "unrecognized arguments"),
        (("padding", "--lengths", "nowhere.txt"), "cannot read nowhere.txt"),
        (("methods", "--dtype", "float8"), "invalid choice: 'float8'"),
        (("report", "nowhere.json"), "cannot read nowhere.json"),
        (("report",), "the following arguments are required"),
    ],
)
def test_mistakes_are_one_line(words, reason, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused("bench", *words)
    assert reason in said
    assert "\n" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("--help",), ("encoder", "--help")])
def test_help_needs_no_torch(words):
    code = f"import sys, foretoken_cli as c; c.main(['bench', *{words!r}]); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = f"import sys; sys.argv = ['foretoken']; {code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "padding" in done.stdout or "--engine" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_keeps_what_was_measured(tmp_path):
    command = [sys.executable, "-m", "foretoken", "bench", "encoder", *TINY, "--output", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("*.json")) and time.monotonic() < deadline:
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all its processes
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "Traceback" not in said
    (file,) = tmp_path.glob("*.json")
    kept = json.loads(file.read_text())
    assert kept["status"] == "interrupted"
    assert kept["results"]
    assert str(file) in said
