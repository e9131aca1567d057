"""Summaries and translations of the user's own: tables with columns of any name, encoder-decoders, one command each."""

import csv
import json

import pyarrow.parquet as pq
import pytest
import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from support.tiny_generation import copies, save_model

PREFIX = "subject copy "  # words of the tiny tokenizer


def write(path, rows):
    pairs = [(row["source"], row["references"][0]) for row in rows]
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("article", "summary"), *pairs])
    else:
        path.write_text("\n".join(json.dumps({"article": one, "summary": other}) for one, other in pairs))
    return path


@pytest.mark.parametrize(
    ("family", "suffix", "method", "prefix"),
    [("t5", ".csv", "prefix-tuning", PREFIX), ("bart", ".jsonl", {"name": "lora", "r": 2}, "")],
)
def test_pairs_are_trained_on_measured_and_predicted(tmp_path, cli, record, family, suffix, method, prefix):
    model = save_model(tmp_path / "model", family)
    data = write(tmp_path / f"pairs{suffix}", copies(60))
    recipe = {
        "model": str(model),
        "data": {
            "path": str(data),
            "problem": "generation",
            "text_column": "article",
            "label_column": "summary",
        },
        "method": method,
        "generation": {"max_new_tokens": 5, "num_beams": 2, "source_prefix": prefix},
        "training": {"metric": "rougeL", "max_steps": 4, "learning_rate": 0.01, "num_threads": 1},
        "output": str(tmp_path / "runs"),
        "name": "run",
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    trained = cli("train", tmp_path / "recipe.yaml")
    assert trained.code == 0, trained.err
    run = tmp_path / "runs" / "run"
    assert {"rouge1", "rouge2", "rougeL", "bleu", "chrf"} <= record(run)["test"].keys()
    rows = {row["id"]: row["prediction"] for row in pq.read_table(run / "predictions.parquet").to_pylist()}
    said = {row["id"]: row["text"] for row in map(json.loads, cli("predict", run, "--input", data).out.splitlines())}
    assert rows.items() <= said.items()
    measured = cli("evaluate", run, data)
    assert measured.code == 0, measured.err
    assert "rougeL" in measured.out
    typed = json.loads(cli("predict", run, copies(1)[0]["source"]).out)
    assert typed["text"] == said["0"]


def test_a_prefix_stands_before_every_source(tmp_path):
    from foretoken.data.plain_table import PlainTable
    from foretoken.training.options import GenerationOptions
    from foretoken.training.problems import make_problem

    from support.readings import reading

    folder = save_model(tmp_path / "model", "t5")
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    problem = make_problem("generation", (), generation=GenerationOptions(source_prefix=PREFIX))
    columns, truncation = problem.for_model(model.config, tokenizer).encode(
        PlainTable({"id": ["1"], "text": ["word1 word2 word3"]}), reading(model, tokenizer, 5)
    )
    whole = tokenizer(f"{PREFIX}word1 word2 word3")["input_ids"]
    assert columns["input_ids"] == [[*whole[:4], whole[-1]]]  # what is too long loses its end, never the prefix
    assert truncation.truncated == 1
