"""Question answering and tagging on packed encoders: the scores and losses of a padded pass."""

import pytest
import torch

import foretoken
from foretoken.attention.attend import use_packing

from support import tiny
from support.packed import PACKED, ROUNDED, N, batch, check_same
from support.table import adapted

ENCODERS = (family for family in (*PACKED, "longformer") if family != "led")  # which asks its decoder
FAMILIES = tuple(family for family in ENCODERS if "QUESTION_ANS" in tiny.tasks(family))
SPANS = ("start_logits", "end_logits")


def model_of(family, method, task):
    plain = tiny.model(family, task)
    if method is None:
        return foretoken.speed_up(plain).double().train()
    return tiny.shaken(adapted(plain, method, task_type=task), scale=0.3).double().train()


def tolerance(family, method):
    """Layers without an adapter are transformers' own in the padded pass, with what it rounds."""
    return ROUNDED.get(family, 1e-9) if method is None or "upper layers" in method else 1e-9


def asked(**answers):
    """Return a batch of questions, without the answers that the loss of transformers wants."""
    inputs = batch("bert", "TOKEN_CLS")
    inputs["input_ids"][:, [1, 3, 4]] = 2  # Longformer finds the question by three separators
    return {name: inputs[name] for name in ("input_ids", "attention_mask")} | answers


@pytest.mark.covering
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", [None, "prefix-propagation", "prefix-tuning", "prefix-propagation, upper layers"])
def test_spans_of_a_packed_pass_are_those_of_a_padded_one(family, method):
    model, inputs = model_of(family, method, "QUESTION_ANS"), asked()
    rows, padded_rows = check_same(model, inputs, atol=tolerance(family, method))
    assert max(rows) < min(padded_rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_transformers_over_all_positions_is_its_own(family):
    """A softmax over padding, too: the pass is padded, as transformers' own is."""
    model, answers = model_of(family, "prefix-propagation", "QUESTION_ANS"), torch.tensor([1, 2, 0])
    rows, padded_rows = check_same(model, asked(start_positions=answers, end_positions=answers))
    assert rows == padded_rows


def test_answers_given_by_place_are_seen_too():
    model, inputs = foretoken.speed_up(tiny.model("distilbert", "QUESTION_ANS").double()), asked()
    answers = torch.tensor([1, 2, 0])
    given = inputs["input_ids"], inputs["attention_mask"], None
    use_packing(True)
    packed = model(*given, start_positions=answers, end_positions=answers)
    by_place = model(*given, answers, answers)
    foretoken.undo_speed_up(model)
    expected = model(**inputs, start_positions=answers, end_positions=answers)
    torch.testing.assert_close([packed.loss, by_place.loss], [expected.loss] * 2, atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", ["bert", "modernbert", "longformer"])
@pytest.mark.parametrize("as_dict", [True, False])
def test_no_answer_begins_or_ends_in_padding(family, as_dict):
    model, inputs = model_of(family, "prefix-propagation", "QUESTION_ANS").eval(), asked()
    with torch.no_grad():
        use_packing(True)
        output = model(**inputs, return_dict=as_dict)
        use_packing(False)
        expected = model(**inputs)
    padding = torch.arange(N) >= torch.tensor([N, 8, 1])[:, None]
    for scores, name in zip(output.values() if as_dict else output, SPANS, strict=True):
        assert float(scores[padding].max()) < -1e30
        assert bool((scores[padding] + scores[padding]).isfinite().all())
        torch.testing.assert_close(scores[~padding], expected[name][~padding], atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", ["bert", "longformer"])
@pytest.mark.parametrize("task", ["TOKEN_CLS", "MASKED_LM"])
def test_labels_of_padding_count_as_in_transformers(family, task):
    """A label there is a mistake; its loss is still transformers' own."""
    model, inputs = foretoken.speed_up(tiny.model(family, task)).double().train(), batch(family, task)
    inputs["labels"] = inputs["labels"].clamp_min(0)
    rows, padded_rows = check_same(model, inputs)
    assert rows == padded_rows
