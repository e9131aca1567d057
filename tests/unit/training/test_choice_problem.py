"""Multiple choice: every choice is a pair with its question, and a softmax over the question's own choices."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from foretoken.data.documents import ChoiceExample
from foretoken.data.problems import MULTIPLE_CHOICE
from foretoken.data.schemas import table
from foretoken.errors import ConfigError
from foretoken.training.model.adapter import attach
from foretoken.training.options import ChunkOptions
from foretoken.training.problems import make_problem

from support import tiny
from support.readings import encoded, reading, speller

QUESTIONS = [
    ChoiceExample("a", "who wrote it", ("ada", "babbage himself", "no one"), 1, ""),
    ChoiceExample("b", "it rained. so", ("the street got wet", "a"), 0, ""),
    ChoiceExample("c", "x", ("y", "z", "ab", "abc"), 3, ""),
]
ROWS = table(MULTIPLE_CHOICE, QUESTIONS, [])


def chooser(family="bert", max_length=40):
    problem = make_problem(MULTIPLE_CHOICE, [])
    model = tiny.model(family, "SEQ_CLS", **problem.head_options)
    style = "roberta" if family in ("roberta", "longformer") else "bert"
    return problem, model, reading(model, speller(style), max_length)


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum()


@pytest.mark.parametrize("method", [{"name": "lora", "r": 2}, {"name": "prefix-propagation", "num_virtual_tokens": 3}])
@pytest.mark.parametrize("family", ["bert", "longformer", "llama"])
def test_each_choice_gets_the_score_of_its_pair_alone(family, method):
    problem, model, how = chooser(family)
    model = attach(model, method, problem.task_type).eval()
    model.config.pad_token_id = how.tokenizer.pad_token_id
    rows, _ = encoded(problem, ROWS, how)
    batch = problem.collator(how.tokenizer, model)(rows)
    with torch.no_grad():
        loss, logits = problem.forward(model, batch)
        alone = [
            [_score(model, how.tokenizer, question.text, choice) for choice in question.choices]
            for question in QUESTIONS
        ]
    outputs, labels = problem.decode(logits.numpy(), batch["labels"].numpy())
    for output, scores in zip(outputs, alone, strict=True):
        assert output == pytest.approx(softmax(np.array(scores)), abs=1e-5)
    right = [softmax(np.array(scores))[question.answer] for scores, question in zip(alone, QUESTIONS, strict=True)]
    assert loss.item() == pytest.approx(-np.mean(np.log(right)), rel=1e-4)
    assert labels.tolist() == [1, 0, 3]
    assert problem.items(batch) == 3


def _score(model, tokenizer, text, choice):
    given = tokenizer(text, choice, return_tensors="pt")
    kept = {"input_ids", "attention_mask"} | ({"token_type_ids"} & set(given))
    return model(**{name: given[name] for name in kept}).logits[0, 0].item()


def test_long_pairs_lose_tokens_of_the_longer_text_and_rows_are_counted():
    problem, _, how = chooser(max_length=16)
    rows, truncation = encoded(problem, ROWS, how)
    lengths = [[len(pair["input_ids"]) for pair in row["sequences"]] for row in rows]
    assert max(max(row) for row in lengths) == 16
    assert [row["length"] for row in rows] == [sum(row) for row in lengths]
    expected = [
        [len(how.tokenizer(question.text, choice)["input_ids"]) for choice in question.choices]
        for question in QUESTIONS
    ]
    assert truncation.longest == max(max(row) for row in expected)
    assert (truncation.documents, truncation.truncated) == (3, sum(max(row) > 16 for row in expected))
    assert {"input_ids", "token_type_ids"} == set(rows[0]["sequences"][0])


def test_outputs_of_unequal_width_are_measured_as_rows():
    problem = make_problem(MULTIPLE_CHOICE, [])
    logits = np.full((3, 4), -100.0)
    logits[0, :3], logits[1, :2], logits[2] = [0, 2, 1], [1, 3], [0, 0, 0, 5]
    outputs, labels = problem.decode(logits, np.array([1, 0, 3]))
    assert [len(row) for row in outputs] == [3, 2, 4]
    values = problem.measure(outputs, labels)
    best = [int(np.argmax(row)) for row in outputs]
    assert values["accuracy"] == pytest.approx(accuracy_score(labels, best))
    assert values["nll"] == pytest.approx(
        -np.mean([np.log(row[label]) for row, label in zip(outputs, labels, strict=True)])
    )
    columns = problem.columns(outputs, labels)
    assert columns["prediction"] == best == [1, 1, 3]
    assert columns["label"] == [1, 0, 3]
    assert [sum(row) for row in columns["probabilities"]] == pytest.approx([1, 1, 1])


def test_bare_texts_and_chunks_are_refused():
    with pytest.raises(ConfigError, match="multiple-choice needs more than a text"):
        make_problem(MULTIPLE_CHOICE, []).check_texts()
    with pytest.raises(ConfigError, match=r"chunks is for classification and .*candidates, got"):
        make_problem(MULTIPLE_CHOICE, [], chunks=ChunkOptions())
