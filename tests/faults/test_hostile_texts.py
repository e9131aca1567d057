"""Names, labels and texts from elsewhere: shown as they are in no terminal and in no page."""

import csv
import json
import subprocess
import sys
import unicodedata

import pytest

from support.faults.forked import assert_done_or_refused
from support.made_runs import make_run
from support.tiny_run import write_csv

HOSTILE = (
    "\x1b[31mred",
    "\x9b2J",
    "<script>alert(1)</script>",
    "a|b",
    "$x_1$",
    "=1+1",
    "\u202egnirts",
    "line\nforetoken: error: forged",
    "tab\there",
    "[1ex]",
    "%s {x} \\input{x}",
)


def assert_harmless(text):
    """Assert that a text does nothing to a terminal: newlines are its only control characters."""
    assert all(character == "\n" or character.isprintable() for character in text)
    assert not any(unicodedata.bidirectional(character) in ("RLO", "LRO", "RLI") for character in text)


def assert_harmless_lines(ended):
    """Assert that what a command said is harmless, and that no line of it is another's."""
    assert_harmless(ended.out + ended.err)
    assert not any(line.startswith("foretoken: error: forged") for line in (ended.out + ended.err).splitlines())


@pytest.fixture(scope="module")
def run(forked, tiny_files, tmp_path_factory):
    """A run of hostile labels, and what was said of it."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [(f"word{number % 30} word{number % 7}", HOSTILE[number % len(HOSTILE)]) for number in range(110)]
    data = write_csv(folder / "mail.csv", rows)
    path = tiny_files.recipe(folder, data={"path": str(data)})
    ended = forked("train", path, cwd=folder)
    assert assert_done_or_refused(ended)
    return folder / "runs" / "run", data, ended


def test_what_training_says_is_harmless(run):
    _, _, ended = run
    assert_harmless_lines(ended)
    assert "\\x1b[31mred" in ended.err


def test_predictions_are_exact_and_harmless(run, forked, tmp_path):
    folder, _, _ = run
    printed = forked("predict", folder, "word1", "word2", cwd=tmp_path)
    assert assert_done_or_refused(printed)
    assert_harmless_lines(printed)
    assert assert_done_or_refused(forked("predict", folder, "word1", "word2", "--output", "out", cwd=tmp_path))
    written = (tmp_path / "out").read_text(encoding="utf-8")
    assert written == printed.out
    for line in written.splitlines():
        assert sorted(json.loads(line)["probabilities"]) == sorted(text.strip() for text in HOSTILE)


def report(forked, folder, tmp_path):
    ended = forked("report", folder, "-o", "report", cwd=tmp_path, seconds=120, more_mb=0)
    assert assert_done_or_refused(ended)
    assert_harmless_lines(ended)
    return tmp_path / "report"


def assert_harmless_report(folder):
    for name in ("index.html", "results.tex", "results.csv"):
        assert_harmless((folder / name).read_text(encoding="utf-8"))
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1
    assert "<script>alert" not in page
    for figure in folder.glob("figures/*.svg"):
        assert "<script" not in figure.read_text(encoding="utf-8")
    for sheet in folder.glob("*.csv"):
        with sheet.open(encoding="utf-8", newline="") as opened:
            cells = [cell for row in csv.reader(opened) for cell in row]
        assert not [
            cell for cell in cells if cell.startswith(("=", "+", "@")) or (cell[:1] == "-" and cell[1:2].isalpha())
        ]


def test_a_report_of_a_run_with_hostile_labels(run, forked, tmp_path):
    assert_harmless_report(report(forked, run[0], tmp_path))


@pytest.mark.slow
def test_a_report_of_runs_with_hostile_names(forked, tmp_path):
    for number, text in enumerate(HOSTILE):
        folder = tmp_path / "runs" / f"{number} {text.replace('/', '_')}"
        options = {"target": text}
        make_run(folder, text, task=text, model=text, options=options, record={"name": text, "problem": text})
    failed = {"status": "failed", "error": HOSTILE[0] + HOSTILE[7], "versions": {HOSTILE[2]: HOSTILE[6]}}
    make_run(tmp_path / "runs" / "=cmd", record=failed)
    (tmp_path / "runs" / "=cmd\x1b[31m").mkdir()
    (tmp_path / "runs" / "=cmd\x1b[31m" / "run.json").write_text("{")
    assert_harmless_report(report(forked, "runs", tmp_path))
    tex = (tmp_path / "report" / "results.tex").read_text()
    assert "\\input{x}" not in tex
    assert not any(line.lstrip().startswith(("[", "*")) for line in tex.splitlines())


@pytest.mark.parametrize(
    "words", [("\x1b[31mverb",), ("tasks", "\x1b[31m\n=x"), ("predict", "\u202e", "x"), ("report", "\x9b")]
)
def test_words_of_the_command_line_are_harmless(words, forked, tmp_path):
    ended = forked(*words, cwd=tmp_path)
    assert not assert_done_or_refused(ended)
    assert_harmless_lines(ended)


@pytest.mark.slow
def test_an_encoding_without_the_letters_escapes_them(forked, tiny_files, tmp_path):
    make_run(tmp_path / "run", "lora", task="größe-日本")
    done = subprocess.run(
        [sys.executable, "-m", "foretoken", "report", "run"],
        env={"PATH": "", "PYTHONIOENCODING": "latin-1"} | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "größe-\\u65e5\\u672c".encode("latin-1") in done.stdout
