"""Retrieval from the command line: an adapter of both sides and of queries alone, measured, searched and embedded."""

import json
import random

import numpy as np
import pyarrow.parquet as pq
import pytest

from foretoken.inference.predictor import load_for_inference
from foretoken.inference.retrieval import embed
from foretoken_cli import main

from support.tiny_run import FILLER


def pairs(count, seed=0):
    """A query has two words of its passage."""
    chance = random.Random(seed)
    for number in range(count):
        words = chance.sample(FILLER, k=8)
        query, passage = " ".join(words[:2]), " ".join(words)
        yield {"id": f"q{number}", "query": query, "passage": passage, "negative": " ".join(chance.sample(FILLER, k=5))}


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """Runs with an adapter of both sides and of queries alone, and the file they were trained on."""
    root, rows = tmp_path_factory.mktemp("retrieval"), list(pairs(80))
    data = root / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for adapt in ("both", "queries"):
        recipe = tiny.recipe(
            root / f"{adapt}.yaml",
            data={"path": str(data), "problem": "retrieval"},
            method={"name": "prefix-propagation", "num_virtual_tokens": 4},
            retrieval={"adapt": adapt},
            training={"max_steps": 30, "eval_every": 15, "batch_size": 16},
            name=adapt,
        )
        assert main(["train", str(recipe)]) == 0
    return root / "runs", data, rows


@pytest.mark.parametrize("adapt", ["both", "queries"])
def test_a_run_learns_and_is_measured_searched_and_embedded(adapt, trained, cli, record, tmp_path):
    runs, data, rows = trained
    run = runs / adapt
    found = record(run)
    assert found["problem"] == "retrieval"
    assert found["recipe"]["training"]["metric"] == "ndcg_at_10"
    losses = [epoch["train_loss"] for epoch in found["epochs"]]
    assert losses[-1] < losses[0]
    predicted = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["split"] == "test"]
    by_hand = [1 / (1 + row["prediction"].index(row["label"][0])) for row in predicted]
    by_hand = [value if value >= 0.1 else 0.0 for value in by_hand]  # of the first ten
    assert found["test"]["mrr_at_10"] == pytest.approx(np.mean(by_hand))

    file = tmp_path / "found.parquet"
    measured = cli("evaluate", run, data, "--corpus", data, "--predictions", file)
    assert measured.code == 0, measured.err
    answers = [json.loads(line) for line in cli("predict", run, "--input", data, "--corpus", data).out.splitlines()]
    assert [len(answer["passages"]) for answer in answers] == [10] * 80
    for answer, row, ranking in zip(answers, rows, pq.read_table(file).to_pylist(), strict=True):
        right = [place for place, one in enumerate(answer["passages"]) if one["passage"] == row["passage"]]
        assert all(answer["passages"][place]["id"] == row["id"] for place in right)
        passages_before = [number for number in ranking["prediction"] if number < 80]  # negatives come after them
        assert [f"q{number}" for number in passages_before[:10]] == [one["id"] for one in answer["passages"]]

    for side in ("query", "passage"):
        written = cli("embed", run, data, tmp_path / f"{side}.npy", "--side", side)
        assert written.code == 0, written.err
    queries, passages = np.load(tmp_path / "query.npy"), np.load(tmp_path / "passage.npy")
    first = (passages @ queries[0]) / np.linalg.norm(passages, axis=1) / np.linalg.norm(queries[0])
    assert answers[0]["passages"][0]["score"] == pytest.approx(first.max(), abs=1e-5)


def test_with_an_adapter_of_queries_passages_are_the_pretrained_models(trained):
    runs, _, rows = trained
    texts = [row["passage"] for row in rows[:9]]
    predictor = load_for_inference(runs / "queries")
    with predictor.model.disable_adapter():
        frozen = embed(predictor, texts, "query").vectors
    assert np.array_equal(embed(predictor, texts, "passage").vectors, frozen)
    assert abs(embed(predictor, texts, "query").vectors - frozen).max() > 1e-3
    both = load_for_inference(runs / "both")
    assert np.array_equal(embed(both, texts, "passage").vectors, embed(both, texts, "query").vectors)


def test_what_does_not_fit_is_one_line(trained, tiny, finished, refused, tmp_path):
    runs, data, _ = trained
    assert "retrieval needs --corpus" in refused("predict", runs / "both", "word1")
    assert "--corpus is for retrieval" in refused("evaluate", finished, tiny.data, "--corpus", data)
    assert "texts are embedded by sentence encoders" in refused("embed", finished, data, tmp_path / "a.npy")
    assert "--top is for retrieval" in refused("predict", finished, "word1", "--top", "3")
    base = {"data": {"path": str(data), "problem": "retrieval"}}
    recipe = tiny.recipe(tmp_path / "recipe.yaml", **base, retrieval={"adapt": "queries"}, method="full")
    assert "adapt: queries needs an adapter" in refused("train", recipe)
    recipe = tiny.recipe(tmp_path / "recipe.yaml", **base, method="head-only")
    assert "nothing would be trained" in refused("train", recipe)
    recipe = tiny.recipe(tmp_path / "recipe.yaml", retrieval={"adapt": "both"})
    assert "retrieval is for data with queries" in refused("train", recipe)
    assert not (tmp_path / "runs").exists()
