"""The process that runs the commands of these tests: its limits hold."""

import pytest

from support.faults.forked import assert_done_or_refused


def test_a_command_is_done_or_refused(forked, tiny_files, tmp_path):
    tiny_files.recipe(tmp_path)
    assert assert_done_or_refused(forked("train", "recipe.yaml", cwd=tmp_path))
    assert (tmp_path / "runs" / "run" / "run.json").is_file()
    ended = forked("train", "nowhere.yaml", cwd=tmp_path)
    assert not assert_done_or_refused(ended)
    assert ended.error == ["nowhere.yaml: no such recipe file"]


def test_time_and_memory_are_limited(forked, tiny_files, tmp_path):
    tiny_files.recipe(tmp_path)
    slow = forked("train", "recipe.yaml", cwd=tmp_path, seconds=0.05)
    assert slow.timed_out
    small = forked("train", "recipe.yaml", cwd=tmp_path, more_mb=1)
    with pytest.raises(AssertionError):
        assert_done_or_refused(small)
