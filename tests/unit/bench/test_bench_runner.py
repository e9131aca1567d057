"""Parts in processes of their own: what is kept when one fails, and when the user stops it."""

import json

import pytest

from foretoken.bench.run import runner
from foretoken.bench.run.plan import Options, Part
from foretoken.bench.run.runner import FAILED, FINISHED, INTERRUPTED, check_device, run_benchmark, run_part
from foretoken.errors import ConfigError, SaveError


@pytest.fixture
def three_parts(monkeypatch):
    """A benchmark of three parts, and the answers that its processes give."""
    from foretoken.bench import attention

    answers = {}

    def answer(part, notify=print):
        found = answers.get(part.title, {"seconds": 1.0})
        if isinstance(found, BaseException):
            raise found
        return {"title": part.title, "dtype": part.dtype, "settings": {}, **found}

    monkeypatch.setattr(
        attention, "plan", lambda options: [Part("attention", name) for name in ("one", "two", "three")]
    )
    monkeypatch.setattr(runner, "run_part", answer)
    return answers


def results_in(folder):
    (file,) = folder.glob("attention-*.json")
    return json.loads(file.read_text())


def test_results_say_where_when_and_with_what(three_parts, tmp_path):
    file, values = run_benchmark("attention", Options(output=tmp_path, layers=3))
    kept = json.loads(file.read_text())
    assert kept == json.loads(json.dumps(values))
    assert kept["status"] == FINISHED
    assert [result["title"] for result in kept["results"]] == ["one", "two", "three"]
    assert {"torch", "transformers", "peft", "python", "foretoken"} <= kept["versions"].keys()
    assert {"cpu", "cores", "threads", "gpu"} <= kept["hardware"].keys()
    assert kept["settings"]["layers"] == 3
    assert kept["started"] <= kept["ended"]


def test_what_was_measured_before_an_interrupt_is_kept(three_parts, tmp_path):
    three_parts["three"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_benchmark("attention", Options(output=tmp_path))
    kept = results_in(tmp_path)
    assert kept["status"] == INTERRUPTED
    assert [result["title"] for result in kept["results"]] == ["one", "two"]


def test_an_interrupt_before_the_first_part_leaves_nothing(three_parts, tmp_path):
    three_parts["one"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_benchmark("attention", Options(output=tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("problem", [{"error": "killed"}, {"failed": "far from transformers"}])
def test_a_part_that_fails_does_not_stop_the_others(problem, three_parts, tmp_path):
    three_parts["two"] = problem
    _, values = run_benchmark("attention", Options(output=tmp_path))
    assert values["status"] == FAILED
    assert len(values["results"]) == 3
    (line,) = runner.failures(values)
    assert line == f"two: {next(iter(problem.values()))}"


@pytest.mark.slow
def test_a_process_that_fails_says_why():
    found = run_part(Part("attention", "broken", settings={"shape": "round"}))
    assert "KeyError" in found["error"]
    assert "Traceback" in found["stderr"]


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ["default", "tuned"])
def test_a_process_measures_with_its_allocator(allocator):
    (part,) = _attention_parts(allocator)
    notes = []
    found = run_part(part, notes.append)
    assert "error" not in found, found.get("stderr")
    assert found["timings"]["forward"]["block"]["median"] > 0
    assert notes


def _attention_parts(allocator):
    from foretoken.bench.attention import plan

    return plan(Options(quick=True, shape="tiny", rounds=1, threads=1, dtype="float32", allocator=allocator))


def test_a_folder_that_cannot_be_is_said_at_once(three_parts, tmp_path):
    (tmp_path / "file").write_text("")
    three_parts["one"] = AssertionError("measured for nothing")
    with pytest.raises(SaveError):
        run_benchmark("attention", Options(output=tmp_path / "file" / "folder"))


def test_a_gpu_that_is_not_there(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check_device("cpu")
    with pytest.raises(ConfigError, match="no CUDA device"):
        check_device("cuda")
