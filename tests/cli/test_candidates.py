"""Questions with candidates from the command line: chunks, new tokens, and what is saved of them."""

import json
import random

import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from support.tiny_run import FILLER, SIGNS


def questions(count, seed=0):
    """Rows whose documents need up to four chunks."""
    chance = random.Random(seed)
    for number in range(count):
        candidates = chance.sample(FILLER, k=chance.randint(1, 4))
        answer = chance.choice(SIGNS["spam"])
        candidates.insert(chance.randint(0, len(candidates)), answer)
        supports = [" ".join(chance.choices(FILLER, k=chance.randint(2, 60))) for _ in range(chance.randint(1, 3))]
        query = " ".join(chance.choices(FILLER, k=3))
        yield {"id": f"q{number}", "query": query, "candidates": candidates, "answer": answer, "supports": supports}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rows = list(questions(60))
    path = tmp_path_factory.mktemp("candidates") / "hops.json"
    path.write_text(json.dumps(rows))
    return path, rows


def test_a_run_trains_its_new_tokens_and_predicts_from_a_file(data, tiny, cli, record, tmp_path):
    path, rows = data
    recipe = tiny.recipe(
        tmp_path / "recipe.yaml",
        data={"path": str(path), "problem": "candidates"},
        method="prefix-propagation",
        training={"metric": "accuracy", "max_steps": 10, "eval_every": 5, "batch_size": 4},
    )
    trained = cli("train", recipe)
    assert trained.code == 0, trained.err
    run = tmp_path / "runs" / "run"
    found = record(run)
    assert found["problem"] == "candidates"
    assert found["documents"]["train"]["truncated"] == 0 < found["documents"]["train"]["longest"] - 64
    with safe_open(run / "adapter" / "adapter_model.safetensors", framework="pt") as saved:
        shapes = {name: saved.get_slice(name).get_shape() for name in saved.keys() if "embeddings" in name}  # noqa: SIM118
    assert list(shapes.values()) == [[4, 16]]

    predicted = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["split"] == "test"]
    answers = {row["id"]: row for row in map(json.loads, cli("predict", run, "--input", path).out.splitlines())}
    by_id = {row["id"]: row for row in rows}
    for row in predicted:
        answer, asked = answers[row["id"]], by_id[row["id"]]
        assert answer["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)
        assert answer["choice"] == asked["candidates"][row["prediction"]]
        assert asked["candidates"][row["label"]] == asked["answer"]
    measured = cli("evaluate", run, path)
    assert measured.code == 0, measured.err
    right = sum(answers[row["id"]]["choice"] == row["answer"] for row in rows) / len(rows)
    assert f"{right:.4f}" in next(line for line in measured.out.splitlines() if line.startswith("accuracy"))
