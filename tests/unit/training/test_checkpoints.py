import json

import pytest
import torch
from safetensors.torch import save_file

from foretoken.training.checkpoints import is_over, last_complete

FILES = ["trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "adapter_model.safetensors"]


@pytest.fixture
def checkpoint(tmp_path):
    def make(step, **state):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file({"weight": torch.zeros(10)}, folder / "adapter_model.safetensors")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            (folder / name).write_bytes(b"x")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 100} | state))
        return folder

    return make


def test_the_newest_by_number_not_by_name(checkpoint, tmp_path):
    checkpoint(9)
    newest = checkpoint(10)
    assert last_complete(tmp_path) == newest


def test_no_folder_no_checkpoint(tmp_path):
    assert last_complete(tmp_path / "nowhere") is None


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_makes_it_incomplete(name, checkpoint, tmp_path):
    whole = checkpoint(5)
    (checkpoint(10) / name).unlink()
    assert last_complete(tmp_path) == whole


@pytest.mark.parametrize("name", ["trainer_state.json", "adapter_model.safetensors"])
def test_a_file_cut_short_makes_it_incomplete(name, checkpoint, tmp_path):
    whole, file = checkpoint(5), checkpoint(10) / name
    file.write_bytes(file.read_bytes()[:-5])
    assert last_complete(tmp_path) == whole


def test_training_is_over_at_the_last_step_or_when_it_was_told_to_stop(checkpoint):
    assert not is_over(checkpoint(50))
    assert is_over(checkpoint(100))
    stopped = {"TrainerControl": {"args": {"should_training_stop": True}, "attributes": {}}}
    assert is_over(checkpoint(60, stateful_callbacks=stopped))
