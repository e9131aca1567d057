import json

import pytest
import torch
from safetensors.torch import save_file

from foretoken.errors import SaveError
from foretoken.training.trainer.checkpoints import best_of, is_over, last_whole, remove_checkpoints, rotate, seal

FILES = ["trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "adapter_model.safetensors"]


@pytest.fixture
def checkpoint(tmp_path):
    def make(step, **state):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file({"weight": torch.zeros(10)}, folder / "adapter_model.safetensors")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.save({"step": step}, folder / name)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 100} | state))
        return folder

    return make


def test_the_newest_by_number_not_by_name(checkpoint, tmp_path):
    checkpoint(9)
    newest = checkpoint(10)
    assert last_whole(tmp_path) == newest


def test_without_checksums_it_is_whole_with_the_state_that_is_written_last(checkpoint, tmp_path):
    whole, newest = checkpoint(5), checkpoint(10)
    assert last_whole(tmp_path) == newest
    (newest / "trainer_state.json").unlink()
    assert last_whole(tmp_path) == whole


def test_training_is_over_at_the_last_step_or_when_it_was_told_to_stop(checkpoint):
    assert not is_over(checkpoint(50))
    assert is_over(checkpoint(100))
    stopped = {"TrainerControl": {"args": {"should_training_stop": True}, "attributes": {}}}
    assert is_over(checkpoint(60, stateful_callbacks=stopped))


@pytest.mark.parametrize("name", FILES)
def test_any_damaged_file_makes_the_one_before_it_the_last(name, checkpoint, tmp_path, caplog):
    whole, newest = checkpoint(5), checkpoint(10)
    seal(whole)
    seal(newest)
    content = (newest / name).read_bytes()
    (newest / name).write_bytes(content[: len(content) // 2])
    assert last_whole(tmp_path) == whole
    assert "checkpoint-10 is cut short or damaged and is passed over" in caplog.text


def test_a_single_changed_byte_is_found(checkpoint, tmp_path):
    newest = checkpoint(10)
    seal(newest)
    file = newest / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    assert last_whole(tmp_path) is None


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_without_its_best_weights_a_run_does_not_go_on(damage, checkpoint, tmp_path):
    best, newest = (
        checkpoint(5),
        checkpoint(10, best_global_step=5, best_model_checkpoint="/somewhere/else/checkpoint-5"),
    )
    for folder in (best, newest):
        seal(folder)
    assert best_of(newest) == best
    file = best / "adapter_model.safetensors"
    file.unlink() if damage == "damaged" else [path.unlink() for path in best.iterdir()]
    with pytest.raises(SaveError, match=r"checkpoint-5, which holds the best weights of this run, is .*--restart"):
        last_whole(tmp_path)


def test_the_two_newest_and_the_best_are_kept_and_nothing_else_is_deleted(checkpoint, tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for step in (2, 4, 6, 8):
        seal(checkpoint(step).rename(folder / f"checkpoint-{step}"))
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoint-best").mkdir()
    rotate(folder, best_step=2)
    assert sorted(path.name for path in folder.glob("checkpoint-?")) == [f"checkpoint-{n}" for n in (2, 6, 8)]
    remove_checkpoints(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-best", "notes.txt"]
