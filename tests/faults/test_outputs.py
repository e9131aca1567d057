"""What is written is never lost and never half-written: full disks, closed streams, files of somebody else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.faults.forked import assert_done_or_refused
from support.made_runs import make_run
from support.tiny_run import documents, write_csv

TEXTS = ("word1 lunch", "word2 prize")


@pytest.fixture(scope="module")
def run(forked, tiny_files, tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("outputs")
    assert assert_done_or_refused(forked("train", tiny_files.recipe(folder), cwd=folder))
    return folder / "runs" / "run"


def refused(ended):
    assert not assert_done_or_refused(ended)
    assert len(ended.error) == 1
    return ended.error[0]


@pytest.mark.parametrize("verb", ["predict", "evaluate", "report", "methods", "--help"])
def test_a_full_disk_behind_stdout_is_an_error(verb, forked, run, tiny_files, tmp_path):
    words = {
        "predict": (run, *TEXTS),
        "evaluate": (run, tiny_files.data),
        "report": (make_run(tmp_path / "runs" / "made"), "-o", tmp_path / "report"),
    }
    said = refused(forked(verb, *words.get(verb, ()), cwd=tmp_path, stdout="/dev/full"))
    assert said.startswith("cannot write stdout: No space left on device")


def test_more_than_a_buffer_of_results_on_a_full_disk_is_an_error(forked, run, tmp_path):
    ended = forked("predict", run, "--input", "-", stdin="word1 lunch\n" * 3000, stdout="/dev/full", cwd=tmp_path)
    assert refused(ended).startswith("cannot write stdout: No space left on device")


@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        (">&-", 2, "cannot write stdout: it is closed"),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("| true", 0, ""),
    ],
)
def test_streams_that_are_closed(streams, code, said, tmp_path):
    command = f'set -o pipefail; "{sys.executable}" -m foretoken tasks {streams}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert ("squality" in done.stdout) is ("2" in streams or "<" in streams)


@pytest.mark.parametrize("device", ["/dev/full", "/dev/null"])
@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_a_device_is_written_into_and_never_replaced(verb, device, forked, run, tiny_files, tmp_path):
    before = Path(device).stat()
    words = (run, *TEXTS, "--output", device) if verb == "predict" else (run, tiny_files.data, "-o", device)
    ended = forked(verb, *words, cwd=tmp_path)
    after = Path(device).stat()
    assert (before.st_mode, before.st_rdev) == (after.st_mode, after.st_rdev)
    if device == "/dev/null":
        assert assert_done_or_refused(ended)
    else:
        assert "No space left on device" in refused(ended)


def test_a_pipe_is_written_into(forked, run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        assert assert_done_or_refused(forked("predict", run, *TEXTS, "--output", "pipe", cwd=tmp_path))
        lines = reader.stdout.read().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1", "2"]


INPUTS = ("the file", "a link", "a hard link")


def named(kind, file):
    """Return another name of a file."""
    if kind == "a link":
        (file.parent / "link").symlink_to(file)
        return file.parent / "link"
    if kind == "a hard link":
        os.link(file, file.parent / "hard")
        return file.parent / "hard"
    return file.parent / ".." / file.parent.name / file.name


@pytest.mark.covering
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_the_input_is_never_the_output(verb, kind, overwrite, forked, run, tmp_path):
    data = write_csv(tmp_path / "mail.csv", documents(6))
    before = data.read_bytes()
    output = named(kind, data)
    words = ("--input", data, "--output", output) if verb == "predict" else (data, "-o", output)
    assert "this command reads" in refused(forked(verb, run, *words, *overwrite, cwd=tmp_path))
    assert data.read_bytes() == before


@pytest.mark.parametrize("place", ["run.json", "adapter/adapter_config.json", "adapter", "adapter/run.json"])
def test_nothing_is_written_into_the_run(place, forked, run, tiny_files, tmp_path):
    def content():
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    before = content()
    for words in (("predict", run, *TEXTS, "--output"), ("evaluate", run, tiny_files.data, "-o")):
        assert "this command reads" in refused(forked(*words, run / place, "--overwrite", cwd=tmp_path))
    assert content() == before


def test_nothing_is_written_into_the_model_below_an_adapter(forked, run, tiny_files, tmp_path):
    before = (tiny_files.model / "config.json").read_bytes()
    ended = forked("predict", run, *TEXTS, "--output", tiny_files.model / "config.json", "--overwrite", cwd=tmp_path)
    assert "this command reads" in refused(ended)
    assert (tiny_files.model / "config.json").read_bytes() == before


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_a_file_that_exists_is_replaced_only_if_one_says_so(verb, forked, run, tiny_files, tmp_path):
    words = (run, *TEXTS, "--output", "out") if verb == "predict" else (run, tiny_files.data, "-o", "out")
    (tmp_path / "out").write_text("precious")
    assert refused(forked(verb, *words, cwd=tmp_path)) == "out exists; --overwrite replaces it, or choose another name"
    assert (tmp_path / "out").read_text() == "precious"
    assert assert_done_or_refused(forked(verb, *words, "--overwrite", cwd=tmp_path))
    assert b"precious" not in (tmp_path / "out").read_bytes()
    (tmp_path / "out").write_text("")
    assert assert_done_or_refused(forked(verb, *words, cwd=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("output", [".", "file/below", "a" * 300, "/proc/out.jsonl", "out.parquet", "out.csv"])
def test_a_place_that_cannot_be_written_is_said_before_the_work(output, forked, run, tmp_path):
    (tmp_path / "file").write_text("precious")
    said = refused(forked("predict", run, *TEXTS, "--output", output, cwd=tmp_path))
    assert "cannot write" in said
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("verb", ["fuse", "lengthen", "report"])
def test_folders_with_other_things_are_never_replaced(verb, forked, run, tiny_files, tmp_path):
    source = tiny_files.model if verb == "lengthen" else run
    for kind in ("folder", "file", "link"):
        output = tmp_path / kind
        if kind == "file":
            output.write_text("precious")
            kept = output
        else:
            kept = (tmp_path / "elsewhere" if kind == "link" else output) / "thesis.txt"
            kept.parent.mkdir()
            kept.write_text("precious")
            if kind == "link":
                output.symlink_to(kept.parent)
        refused(forked(verb, source, "-o", output, cwd=tmp_path))
        assert kept.read_text() == "precious"
