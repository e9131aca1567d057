"""Gradient accumulation changes how a step is computed, not what it is."""

import pytest


def test_accumulated_batches_weigh_as_one(tiny, cli, record, tmp_path):
    """The same documents in one batch of 8 or in four of 2: the same loss, not one that is four times as large."""
    losses = []
    for name, size, steps in (("whole", 8, 1), ("parts", 2, 4)):
        folder = tmp_path / name
        folder.mkdir()
        options = {"epochs": 1, "batch_size": size, "gradient_accumulation_steps": steps, "learning_rate": 1e-9}
        assert cli("train", tiny.recipe(folder / "recipe.yaml", training=options)).code == 0
        losses.append(record(folder / "runs" / "run")["epochs"][0]["train_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)  # dropout differs
