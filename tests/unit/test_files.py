"""Writes are whole or not at all, and a failed one says why in one line."""

import errno
import json
import os
import resource
import stat
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from safetensors.torch import save_file

from foretoken.errors import BackboneError, SaveError
from foretoken.files import atomic_directory, atomic_file, check_writable, temporary_name, write_json, write_text
from foretoken.training.trainer.checkpoints import seal


@pytest.fixture
def small_disk():
    """No file may grow past 1000 bytes: what the system says then is what it says on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_files_and_folders_are_as_the_umask_says(tmp_path, umask, mask):
    """safetensors, among others, writes for the owner alone."""
    umask(mask)
    tensors = {"a": torch.zeros(3)}
    with atomic_file(tmp_path / "runs" / "one.safetensors") as temporary:
        save_file(tensors, temporary)
    with atomic_directory(tmp_path / "runs" / "model") as temporary:
        (temporary / "deep").mkdir()
        for name in ("deep/a.safetensors", "b.safetensors"):
            save_file(tensors, temporary / name)
    checkpoint = tmp_path / "runs" / "checkpoint-2"
    checkpoint.mkdir()
    save_file(tensors, checkpoint / "model.safetensors")
    seal(checkpoint)
    for path in (tmp_path / "runs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~mask, path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_json_round_trip_with_non_finite_floats_at_any_depth(tmp_path):
    file = tmp_path / "run.json"
    write_json(file, {"name": "Zoë", "scores": [1.5, float("nan"), {"worst": (float("-inf"), 2)}]})
    assert json.loads(file.read_text("utf-8")) == {"name": "Zoë", "scores": [1.5, None, {"worst": [None, 2]}]}
    assert "Zoë" in file.read_text("utf-8")


def test_a_directory_appears_only_at_the_end(tmp_path):
    target = tmp_path / "model"
    with atomic_directory(target) as temporary:
        assert temporary.parent == tmp_path
        assert not target.exists()
        write_text(temporary / "weights", "1")
    assert names(tmp_path) == ["model"]
    assert names(target) == ["weights"]


def write_half_and_fail(writer, path, error):
    with writer(path) as temporary:
        write_text(temporary / "x" if writer is atomic_directory else temporary, "new")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, BackboneError, SystemExit])
def test_any_failure_keeps_the_old_content_and_is_passed_on(tmp_path, error):
    write_text(tmp_path / "file", "old")
    with atomic_directory(tmp_path / "folder") as temporary:
        write_text(temporary / "weights", "old")
    for writer, name in ((atomic_file, "file"), (atomic_directory, "folder"), (atomic_file, "new/deep/file")):
        with pytest.raises(error):
            write_half_and_fail(writer, tmp_path / name, error)
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path / "folder") == ["weights"]


def test_a_failed_swap_brings_the_old_directory_back(tmp_path, monkeypatch):
    target = tmp_path / "model"
    with atomic_directory(target) as temporary:
        write_text(temporary / "weights", "old")
    rename, calls = type(target).rename, []

    def fail_on_the_second(self, other):
        calls.append(self)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(self, other)

    monkeypatch.setattr(type(target), "rename", fail_on_the_second)
    with pytest.raises(SaveError, match="No space left on device; free some space"), atomic_directory(target):
        pass
    assert names(tmp_path) == ["model"]
    assert (target / "weights").read_text() == "old"


def test_of_two_processes_that_write_the_same_place_the_last_one_wins_and_is_whole(tmp_path):
    writers = []
    for number in range(2):
        writers.append(os.fork())
        if not writers[-1]:
            with suppress(BaseException):
                for _ in range(120):
                    with atomic_directory(tmp_path / "folder") as temporary:
                        write_text(temporary / "a", str(number))
                        write_text(temporary / "b", str(number))
                    write_text(tmp_path / "file", str(number) * 9)
                os._exit(0)
            os._exit(1)
    assert [os.waitpid(child, 0)[1] for child in writers] == [0, 0]
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "folder" / "a").read_text() == (tmp_path / "folder" / "b").read_text()
    assert (tmp_path / "file").read_text() in ("0" * 9, "1" * 9)


def test_a_full_disk_leaves_the_old_file(tmp_path, small_disk):
    file = tmp_path / "a.txt"
    write_text(file, "old")
    with pytest.raises(SaveError, match=r"cannot write .*a\.txt: File too large; free some space") as caught:
        write_text(file, "x" * 5000)
    assert "\n" not in str(caught.value)
    assert file.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("save", [lambda tensors, path: save_file(tensors, path), torch.save])
def test_a_full_disk_under_safetensors_or_torch_is_a_save_error_too(tmp_path, small_disk, save):
    with pytest.raises(SaveError) as caught, atomic_directory(tmp_path / "model") as temporary:
        save({"a": torch.zeros(5000)}, temporary / "weights")
    assert str(caught.value).startswith(f"cannot write {tmp_path / 'model'}: File too large; free some space")
    with pytest.raises(SaveError) as caught, atomic_directory(tmp_path / "model") as temporary:
        write_text(temporary / "card", "x" * 5000)
    assert str(caught.value).startswith(f"cannot write {tmp_path / 'model' / 'card'}: File too large; free some space")
    assert names(tmp_path) == []


def test_a_place_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for attempt in (lambda path: write_text(path, "x"), check_writable):
        with pytest.raises(SaveError, match="Not a directory; choose another name"):
            attempt(tmp_path / "file" / "below")
    with pytest.raises(SaveError), atomic_directory(tmp_path / "file" / "below"):
        pytest.fail("the block must not run")


def test_a_file_is_not_replaced_by_a_folder_nor_the_reverse(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SaveError, match="Not a directory"), atomic_directory(tmp_path / "file"):
        pytest.fail("the block must not run")
    with pytest.raises(SaveError, match="Is a directory"), atomic_file(tmp_path / "folder"):
        pytest.fail("the block must not run")
    assert names(tmp_path) == ["file", "folder"]


def test_a_read_only_place_is_refused_with_the_remedy(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(type(tmp_path), "mkdir", refuse)
    monkeypatch.setattr("foretoken.files.tempfile.TemporaryFile", refuse)
    with pytest.raises(SaveError, match="Read-only file system; choose a folder that you may write to"):
        check_writable(tmp_path)
    with pytest.raises(SaveError, match="Read-only file system"), atomic_directory(tmp_path / "model"):
        pytest.fail("the block must not run")


def test_a_link_keeps_pointing_to_what_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    for name in ("folder", "file"):
        (tmp_path / name).symlink_to(tmp_path / "real" / name)
    with atomic_directory(tmp_path / "folder") as temporary:
        write_text(temporary / "weights", "1")
    write_text(tmp_path / "file", "2")
    assert (tmp_path / "folder").is_symlink()
    assert (tmp_path / "file").is_symlink()
    assert names(tmp_path / "real") == ["file", "folder"]
    assert names(tmp_path / "real" / "folder") == ["weights"]


def stray(folder, *, process, machine=None):
    """Make what a process leaves that is killed while it writes."""
    _, own, _, chance = temporary_name().removesuffix(".tmp").split("-")
    path = folder / f".foretoken-{machine or own}-{process}-{chance}.tmp"
    path.write_text("half")
    return path


def test_what_a_dead_process_left_is_removed_and_what_others_write_stays(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, alive = stray(tmp_path, process=ended.pid), stray(tmp_path, process=os.getppid())
    elsewhere = stray(tmp_path, process=ended.pid, machine="0" * 8)
    forgotten = stray(tmp_path, process=os.getppid(), machine="1" * 8)
    os.utime(forgotten, (0, 0))
    ahead = stray(tmp_path, process=os.getppid(), machine="2" * 8)
    os.utime(ahead, (2**33, 2**33))  # the clock was set back since
    write_text(tmp_path / "note.txt", "x")
    assert not dead.exists()
    assert not forgotten.exists()
    assert not ahead.exists()
    assert alive.exists()
    assert elsewhere.exists()
