"""Token classification from the command line: long and short documents, evaluation, prediction."""

import json
import random

import pyarrow.parquet as pq
import pytest

from foretoken.metrics.spans import span_metrics

from support.tiny_run import FILLER, save_tiny_model

NAMES = {"PER": ("lunch", "meeting"), "ORG": ("prize", "winner")}  # words of the tiny tokenizer


def sentence(chance, longest):
    """Return words and tags: a name is always of its type, and two of them in a row are one entity."""
    words, tags = [], []
    for _ in range(chance.randint(2, longest)):
        kind = chance.choice([None, None, *NAMES])
        last = tags[-1][2:] if tags else ""
        words.append(chance.choice(NAMES.get(kind, FILLER)))
        tags.append("O" if kind is None else f"{'I' if last == kind else 'B'}-{kind}")
    return words, tags


def write(path, sentences):
    path.write_text("\n".join("".join(f"{w}\t{t}\n" for w, t in zip(*one, strict=True)) for one in sentences))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root, chance = tmp_path_factory.mktemp("tagging"), random.Random(0)
    rows = [sentence(chance, 12) for _ in range(60)] + [sentence(chance, 150) for _ in range(6)]
    chance.shuffle(rows)
    return save_tiny_model(root / "model"), write(root / "names.txt", rows), rows


@pytest.mark.parametrize(("method", "least"), [("prefix-propagation", 0.3), ("full", 0.8)])
def test_a_run_learns_to_tag_and_what_it_saved_does_so_elsewhere(files, tiny, cli, record, tmp_path, method, least):
    model, data, rows = files
    recipe = tiny.recipe(
        tmp_path / "recipe.yaml",
        model=str(model),
        data={"path": str(data), "problem": "token-classification"},
        method=method,
        training={
            "metric": "accuracy",
            "max_steps": 40,
            "eval_every": 20,
            "learning_rate": 0.02,
            "tokens_per_batch": 300,
        },
    )
    trained = cli("train", recipe)
    assert trained.code == 0, trained.err
    assert "have more than 64 tokens, read in windows" in trained.err
    run = tmp_path / "runs" / "run"
    found = record(run)
    assert found["problem"] == "token-classification"
    assert found["labels"] == ["O", "B-ORG", "I-ORG", "B-PER", "I-PER"]
    assert found["documents"]["train"]["truncated"] == 0
    assert found["test"]["accuracy"] > least
    predicted = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["split"] == "test"]
    by_hand = span_metrics([row["label"] for row in predicted], [row["prediction"] for row in predicted])
    assert {name: found["test"][name] for name in by_hand} == pytest.approx(by_hand)
    assert all(row["label"] == rows[int(row["id"])][1] for row in predicted)

    answers = [json.loads(line) for line in cli("predict", run, "--input", data).out.splitlines()]
    assert [row["words"] for row in answers] == [words for words, _ in rows]
    for row in predicted:
        assert answers[int(row["id"])]["tags"] == row["prediction"]
    measured = cli("evaluate", run, data)
    assert measured.code == 0, measured.err
    scores = dict(line.split()[:2] for line in measured.out.split("\n\n")[0].splitlines()[1:])
    everything = span_metrics([tags for _, tags in rows], [row["tags"] for row in answers])
    assert float(scores["f1"]) == pytest.approx(everything["f1"], abs=1e-4)

    typed = json.loads(cli("predict", run, "word1  lunch meeting word2").out)
    assert typed["words"] == ["word1", "lunch", "meeting", "word2"]
    assert all(typed["words"][one["start"] : one["end"]] == one["text"].split() for one in typed["entities"])
