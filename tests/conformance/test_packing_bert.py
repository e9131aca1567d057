"""BERT-type encoders, MPNet and ModernBERT: packed batches give what padded ones do, and what transformers' own do."""

import copy
import pickle

import pytest
import torch
from peft import get_peft_model

import foretoken
from foretoken.attention import choose as attention_settings
from foretoken.attention import packed
from foretoken.attention.choose import use_packing
from foretoken.backbones.bert.packed import HOOKS
from foretoken.backbones.packing import HEAD_INPUTS

from support import tiny
from support.packed_runs import check_same, outcome
from support.table import METHODS, adapted

FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "modernbert", "mpnet")
ALIKE = ("prefix-propagation", "prefix-tuning", "inducer-tuning, MAM", "stack, of every site")
N = 13


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch):
    monkeypatch.setattr(attention_settings, "_chosen", {"engine": None, "packing": None})


def batch(task, *, padded=True):
    generator = torch.Generator().manual_seed(3)
    mask = torch.ones(3, N, dtype=torch.long)
    if padded:
        mask[0, 5] = mask[1, 8:] = mask[2, 1:] = 0
    ids = torch.randint(5, 100, (3, N), generator=generator)
    return {"input_ids": ids, "attention_mask": mask} | tiny.answers(
        task, {"attention_mask": mask, "input_ids": ids}, generator
    )


@pytest.mark.parametrize("task", ["SEQ_CLS", "TOKEN_CLS"])
@pytest.mark.parametrize(
    ("family", "method"), [(f, m) for f in FAMILIES for m in METHODS if f == "bert" or m in ALIKE], ids=str
)
def test_packed_is_padded(family, method, task):
    model = tiny.shaken(adapted(tiny.model(family, task), method, task_type=task), scale=0.3).double().train()
    rows, padded_rows = check_same(model, batch(task))
    assert rows[0] < padded_rows[0]
    late = 3 * 3 if method == "prefix-propagation, upper layers" else 0  # a prefix of 3 for each of the 3 texts
    assert rows[-1] == (3 if task == "SEQ_CLS" and family not in ("modernbert", "mpnet") else rows[0] + late)


@pytest.mark.parametrize("task", ["SEQ_CLS", "TOKEN_CLS"])
@pytest.mark.parametrize(
    ("family", "method"), [("bert", m) for m in METHODS] + [("distilbert", m) for m in ALIKE], ids=str
)
def test_each_document_by_itself(family, method, task, monkeypatch):
    """As batches of real documents: the attention of each without padding."""
    monkeypatch.setattr(packed, "APART_FROM", -1)
    model = tiny.shaken(adapted(tiny.model(family, task), method, task_type=task), scale=0.3).double().train()
    rows, padded_rows = check_same(model, batch(task))
    assert rows[0] < padded_rows[0]


def test_a_position_free_prefix_beside_one_in_the_hidden_states(monkeypatch):
    """Padding on the left: every document has its own rotations, those of the prefix before them."""
    monkeypatch.setattr(packed, "APART_FROM", -1)
    first = foretoken.PrefixPropagationConfig(num_virtual_tokens=2, prefix_dropout=0.0)
    free = foretoken.PrefixTuningConfig(num_virtual_tokens=3, prefix_dropout=0.0, position_free=True)
    config = foretoken.StackConfig(task_type="TOKEN_CLS", configs=[first, free])
    model = tiny.shaken(get_peft_model(tiny.model("modernbert", "TOKEN_CLS"), config), scale=0.3).double().eval()
    inputs = {name: values.flip(1) for name, values in batch("TOKEN_CLS").items()}
    rows, padded_rows = check_same(model, inputs)
    assert rows[0] < padded_rows[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["SEQ_CLS", "TOKEN_CLS", "MASKED_LM"])
def test_sped_up_is_transformers_own(family, task):
    plain, inputs = tiny.model(family, task), batch(task)
    classes = [type(module) for module in plain.modules()]
    with torch.no_grad():
        theirs = plain(**inputs)
        foretoken.speed_up(plain)
        ours = plain(**inputs)
        unpickled = pickle.loads(pickle.dumps(plain))(**inputs)
        copied = copy.deepcopy(plain)(**inputs)
        more = plain(**inputs, output_hidden_states=True)
    real = inputs["attention_mask"].bool() if task != "SEQ_CLS" else slice(None)
    for found in (ours, unpickled, copied, more):
        torch.testing.assert_close(found.logits[real], theirs.logits[real], atol=1e-5, rtol=1e-5)
    assert [state.shape[1] for state in more.hidden_states] == [N] * len(more.hidden_states)
    assert [type(module) for module in foretoken.undo_speed_up(plain).modules()] == classes
    assert plain(**inputs).logits.equal(theirs.logits)


def test_what_cannot_be_packed_is_padded():
    """A user's mask in four dimensions, a call of the body itself, and states that somebody records."""
    model, inputs = foretoken.speed_up(tiny.model("bert")).double(), batch("SEQ_CLS")
    use_packing(True)
    own = inputs["attention_mask"].bool()[:, None, None] & torch.ones(N, N, dtype=torch.bool).tril()
    body = model.bert(inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state
    assert body.shape[:2] == (3, N)
    given = model(inputs["input_ids"], attention_mask=own).logits
    foretoken.undo_speed_up(model)
    torch.testing.assert_close(given, model(inputs["input_ids"], attention_mask=own).logits, atol=1e-9, rtol=0)


def test_without_padding_only_the_last_layer_is_short():
    model = tiny.shaken(adapted(tiny.model("bert"), "prefix-tuning", task_type="SEQ_CLS")).double().train()
    rows, _ = check_same(model, batch("SEQ_CLS", padded=False))
    assert rows == [3 * N] * (len(rows) - 1) + [3]


def test_a_failed_pass_leaves_no_mark():
    model, inputs = foretoken.speed_up(tiny.model("bert")), batch("SEQ_CLS")
    encoder = model.bert.encoder
    expected = model(**inputs).logits

    def fail(*_):
        raise ZeroDivisionError

    handle = encoder.layer[0].intermediate.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        model(**inputs)
    handle.remove()
    assert HEAD_INPUTS.get(encoder) is None
    assert HOOKS.get(encoder).batch is None
    assert model(**inputs).logits.equal(expected)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant, family):
    model, inputs = (
        tiny.shaken(adapted(tiny.model(family), "prefix-propagation", task_type="SEQ_CLS")).double(),
        batch("SEQ_CLS"),
    )
    _, expected, _ = outcome(model.train(), inputs, True)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    _, gradients, _ = outcome(model, inputs, True)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-9, rtol=0)
