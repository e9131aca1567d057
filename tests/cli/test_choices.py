"""Multiple choice from the command line, with questions of two to four choices."""

import json
import random

import pyarrow.parquet as pq
import pytest

from foretoken_cli import main

from support.tiny_run import FILLER


def questions(count, seed=0):
    """The right choice is the one with a word about spam in it."""
    chance = random.Random(seed)
    for _ in range(count):
        choices = [
            " ".join([*chance.choices(FILLER, k=chance.randint(1, 4)), "lunch"]) for _ in range(chance.randint(2, 4))
        ]
        answer = chance.randrange(len(choices))
        choices[answer] = choices[answer].replace("lunch", "winner")
        yield {"text": " ".join(chance.choices(FILLER, k=chance.randint(1, 9))), "choices": choices, "label": answer}


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A finished run, the file it was trained on, and the rows of that file."""
    root, rows = tmp_path_factory.mktemp("choices"), list(questions(100))
    data = root / "quiz.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tiny.recipe(
        root / "recipe.yaml",
        data={"path": str(data), "problem": "multiple-choice"},
        training={"metric": "accuracy", "max_steps": 60, "eval_every": 30},
    )
    assert main(["train", str(recipe)]) == 0
    return root / "runs" / "run", data, rows


def test_a_run_learns_to_choose_and_predicts_from_a_file(trained, cli, record, tmp_path):
    run, data, rows = trained
    found = record(run)
    assert found["test"]["accuracy"] > 0.7  # by chance: 0.36
    predicted = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["split"] == "test"]
    hits = [row["label"] == row["prediction"] for row in predicted]
    assert found["test"]["accuracy"] == pytest.approx(sum(hits) / len(hits))
    assert all(len(row["probabilities"]) == len(rows[int(row["id"])]["choices"]) for row in predicted)

    unlabelled = tmp_path / "new.jsonl"
    unlabelled.write_text("".join(json.dumps({"text": row["text"], "choices": row["choices"]}) + "\n" for row in rows))
    answers = [json.loads(line) for line in cli("predict", run, "--input", unlabelled).out.splitlines()]
    for row in predicted:
        answer = answers[int(row["id"])]
        assert answer["number"] == row["prediction"]
        assert answer["choice"] == rows[int(row["id"])]["choices"][row["prediction"]]
        assert answer["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)
    measured = cli("evaluate", run, data)
    assert measured.code == 0, measured.err
    right = sum(answer["number"] == row["label"] for answer, row in zip(answers, rows, strict=True)) / len(rows)
    assert f"{right:.4f}" in next(line for line in measured.out.splitlines() if line.startswith("accuracy"))
