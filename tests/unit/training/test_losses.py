"""The losses of rare classes and of several labels, against scikit-learn, PyTorch, transformers and the equations."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import get_peft_model
from sklearn.utils.class_weight import compute_class_weight

from foretoken import SelectivePrefixTuningConfig
from foretoken.data.documents import ChoiceExample, TaggedExample
from foretoken.data.problems import MULTIPLE_CHOICE, TOKEN_CLASSIFICATION
from foretoken.data.schemas import table
from foretoken.errors import ConfigError
from foretoken.training.model.adapter import attach
from foretoken.training.options import ChunkOptions
from foretoken.training.problems import make_problem
from foretoken.training.problems.losses import (
    MOST_REPEATS,
    LossOptions,
    class_loss,
    class_weights,
    label_loss,
    repeated,
)
from foretoken.training.trainer.trainer import RecipeTrainer

from support import tiny
from support.readings import encoded, reading, speller

WEIGHED = LossOptions(class_weights=(0.5, 3.0, 1.5), focal_gamma=2.0)
NAMES = ["a", "b", "c"]


def drawn(seed, rows=17):
    chance = np.random.default_rng(seed)
    return chance.normal(scale=3, size=(rows, 3)), chance.integers(0, 3, rows), chance.integers(0, 2, (rows, 3))


@pytest.mark.parametrize("seed", range(3))
def test_balanced_weights_are_scikit_learns_and_the_loss_pytorchs(seed):
    logits, classes, _ = drawn(seed)
    weights = class_weights("balanced", NAMES, [[number] for number in classes])
    np.testing.assert_allclose(weights, compute_class_weight("balanced", classes=np.arange(3), y=classes))
    own = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights, dtype=torch.float64))
    scores, right = torch.tensor(logits), torch.tensor(classes)
    torch.testing.assert_close(class_loss(scores, right, LossOptions(weights)), own(scores, right))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_losses_are_those_of_the_equation(seed, gamma):
    """Equation 5 of Lin et al. 2017: -a (1 - p)^gamma log p of the right class, or of each label being there or not."""
    logits, classes, held = drawn(seed)
    options = LossOptions(WEIGHED.class_weights, gamma)
    total, shares = 0.0, 0.0
    for row, right in zip(logits.tolist(), classes, strict=True):
        p = math.exp(row[right]) / sum(math.exp(value) for value in row)
        total -= options.class_weights[right] * (1 - p) ** gamma * math.log(p)
        shares += options.class_weights[right]
    found = class_loss(torch.tensor(logits), torch.tensor(classes), options)
    assert found.item() == pytest.approx(total / shares, rel=1e-10)
    total = 0.0
    for row, labels in zip(logits.tolist(), held.tolist(), strict=True):
        for value, label, weight in zip(row, labels, options.class_weights, strict=True):
            p = 1 / (1 + math.exp(-value if label else value))
            total -= (weight if label else 1.0) * (1 - p) ** gamma * math.log(p)
    found = label_loss(torch.tensor(logits), torch.tensor(held, dtype=torch.float64), options)
    assert found.item() == pytest.approx(total / logits.size, rel=1e-10)


def test_weights_of_labels_are_pytorchs_pos_weight():
    logits, _, held = (torch.tensor(values) for values in drawn(0))
    rows = [np.flatnonzero(row).tolist() for row in held.numpy()]
    weights = class_weights("balanced", NAMES, rows, several=True)
    counts = held.sum(dim=0).numpy()
    np.testing.assert_allclose(weights, np.maximum(1, (len(rows) - counts) / counts))
    own = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights, dtype=torch.float64))
    torch.testing.assert_close(label_loss(logits, held.double(), LossOptions(weights)), own(logits, held.double()))


@pytest.mark.parametrize(
    ("weights", "message"), [({"d": 2.0}, "no class 'd'"), ({"a": 0.0}, "got 0.0 for 'a', expected a number above 0")]
)
def test_weights_of_no_class_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        class_weights(weights, NAMES, [[0]])
    assert class_weights({"b": 5}, NAMES, [[0]]) == (1.0, 5.0, 1.0)


@given(st.lists(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 1, 2]), min_size=1, max_size=60))
def test_classes_are_repeated_until_they_are_about_as_frequent(classes):
    rows = repeated([[number] for number in classes])
    assert rows == sorted(rows)
    assert set(rows) == set(range(len(classes)))  # none is lost
    before, after = Counter(classes), Counter(classes[row] for row in rows)
    for number, count in before.items():
        assert after[number] == count * min(MOST_REPEATS, round(max(before.values()) / count))


def test_a_document_with_several_labels_is_repeated_for_the_rarest_and_one_without_is_not():
    rows = repeated([[0], [0], [0], [0], [0, 1], []])
    assert Counter(rows) == {0: 1, 1: 1, 2: 1, 3: 1, 4: 5, 5: 1}


PROBLEMS = {"classification": torch.tensor([0, 2, 1]), "multi-label-classification": torch.eye(3)}


def selective(name, weight):
    """A model with an auxiliary loss that is large enough to see."""
    head = {"problem_type": "multi_label_classification"} if name.startswith("multi") else {}
    config = SelectivePrefixTuningConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, selective_loss_weight=weight, task_type="SEQ_CLS"
    )
    return tiny.shaken(get_peft_model(tiny.model("bert", **head), config)).train()


def step_loss(problem, model, inputs):
    """Return what a training step goes back from."""
    trainer = SimpleNamespace(problem=problem, model=model, options=SimpleNamespace(label_smoothing=0.0))
    return RecipeTrainer.compute_loss(trainer, model, dict(inputs))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("losses", [LossOptions(), WEIGHED])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_loss_has_the_auxiliary_one_in_training_whoever_computes_it(name, losses, chunked):
    problem = make_problem(name, NAMES, losses=losses, chunks=ChunkOptions() if chunked else None)
    inputs = tiny.batch("bert", labels=False) | {"labels": PROBLEMS[name]}
    if chunked:
        inputs |= {"owner": torch.tensor([0, 1, 1]), "labels": PROBLEMS[name][:2]}
    check_auxiliary(problem, selective(name, 0.5), inputs, lambda logits: problem.loss(logits, inputs["labels"]))


def check_auxiliary(problem, model, inputs, expected):
    auxiliary = model.auxiliary_loss()
    assert auxiliary > 0.1
    logits = problem.forward(model, dict(inputs))[1]
    torch.testing.assert_close(step_loss(problem, model, inputs), expected(logits) + auxiliary)
    with torch.no_grad():
        measured, logits = problem.forward(model.eval(), dict(inputs))
        torch.testing.assert_close(measured, expected(logits))
        torch.testing.assert_close(step_loss(problem, model, inputs), measured)


@pytest.mark.parametrize("name", [TOKEN_CLASSIFICATION, MULTIPLE_CHOICE])
def test_tags_and_choices_have_it_too(name):
    labels = ["O", "I"] if name == TOKEN_CLASSIFICATION else []
    tagged, choice = TaggedExample("0", ("ab", "c"), ("O", "I"), ""), ChoiceExample("0", "x", ("a", "b", "c"), 1, "")
    problem = make_problem(name, labels)
    model = tiny.model("bert", problem.task_type, **problem.head_options)
    how = reading(model, speller("bert"), 40)
    method = {"name": "selective-prefix-tuning", "num_virtual_tokens": 3, "prefix_dropout": 0.0}
    model = tiny.shaken(attach(model, method | {"selective_loss_weight": 0.5}, problem.task_type)).train()
    rows, _ = encoded(problem, table(name, [tagged if labels else choice], labels), how)
    inputs = problem.collator(how.tokenizer, model)(rows)

    def expected(logits):
        scores, right = logits.flatten(0, -2), inputs["labels"].flatten()
        return torch.nn.functional.cross_entropy(scores[right >= 0], right[right >= 0])

    check_auxiliary(problem, model, inputs, expected)


def test_the_plain_loss_of_several_labels_is_transformers_own():
    model = selective("multi-label", 0.0).eval()
    inputs = tiny.batch("bert", labels=False) | {"labels": PROBLEMS["multi-label-classification"]}
    own = model(**inputs)
    problem = make_problem("multi-label-classification", NAMES)
    torch.testing.assert_close(problem.loss(own.logits, inputs["labels"]), own.loss)
    torch.testing.assert_close(problem.forward(model, inputs)[0], own.loss)
