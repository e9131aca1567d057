"""A run of a recipe reports the loss that a method brings along."""


def test_a_run_records_the_auxiliary_loss_beside_the_loss(tiny, cli, record, tmp_path, finished):
    method = {"name": "selective-prefix-tuning", "selective_loss_weight": 0.1, "alpha": 4}
    options = {"epochs": 2, "gradient_accumulation_steps": 2, "batch_size": 4}
    assert cli("train", tiny.recipe(tmp_path / "recipe.yaml", method=method, training=options)).code == 0
    entries = record(tmp_path / "runs" / "run")["epochs"]
    assert len(entries) == 2
    for entry in entries:
        assert 0 < entry["auxiliary_loss"] < 0.1 * 2  # cosines of two layers
        assert entry["auxiliary_loss"] < entry["train_loss"]
    assert entries[1]["auxiliary_loss"] < entries[0]["auxiliary_loss"]
    assert all("auxiliary_loss" not in entry for entry in record(finished)["epochs"])
