"""The process that runs the commands of these tests: its limits hold."""

import pytest

from support.faults.forked import assert_done_or_refused


def test_time_and_memory_are_limited(forked, tiny_files, tmp_path):
    tiny_files.recipe(tmp_path)
    slow = forked("train", "recipe.yaml", cwd=tmp_path, seconds=0.05)
    assert slow.timed_out
    with pytest.raises(AssertionError, match="hangs"):
        assert_done_or_refused(slow)
    (tmp_path / "large.csv").write_text("text,label\n" + "word " * 20_000_000 + ",ham\n")
    small = forked("train", "recipe.yaml", "--data.path", "large.csv", cwd=tmp_path, more_mb=1)
    assert small.code != 0  # what it needs is not in reach; with the limit it ends soon
    assert not small.timed_out
