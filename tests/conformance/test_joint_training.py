"""Models that are trained at once: every adapter gets the gradients of its own documents, as if it were alone."""

import copy
from contextlib import nullcontext

import pytest
import torch
from peft import get_peft_model
from test_bank import LORAS, config_of

from foretoken.attention.choose import use_packing
from foretoken.errors import AdapterError
from foretoken.training.trainer.joint import JointPass, train_together
from foretoken.training.trainer.turns import Turns
from foretoken.tuner import auxiliary_loss_of, replace_head

from support import tiny
from support.table import EMPTY, METHODS, ROWS

BY_DEFAULT = ("bert", "SEQ_CLS", True)
LENGTH = 12


def made(method, family, task, *, seed, head=None):
    model = tiny.model(family, task)
    body = tiny.model(family, "SEQ_CLS").base_model.state_dict()
    model.base_model.load_state_dict(body, strict=False)  # a pooler may be too many
    if head:
        replace_head(model, pool=head)
    model = get_peft_model(model, config_of(method, task, family)).train()
    tiny.shaken(model, scale=0.3, seed=seed)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):  # of heads, which have theirs whatever the config says
            module.p = 0.0
    return model


def documents(family, task, seed):
    """Return three documents of a model's own, with labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 100, (3, LENGTH - seed % 4), generator=generator)
    mask = (torch.arange(ids.shape[1]) < torch.randint(3, ids.shape[1] + 1, (3, 1), generator=generator)).long()
    mask[0] = 1
    labels = torch.randint(0, 3, (3,) if task == "SEQ_CLS" else tuple(ids.shape), generator=generator)
    if task != "SEQ_CLS":
        labels = labels.masked_fill(mask == 0, -100)
    padding = tiny.config_of(family).pad_token_id or 0
    return {"input_ids": ids.where(mask.bool(), padding), "attention_mask": mask, "labels": labels}


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def together(models, batches):
    """Return each model's loss and gradients, of one pass for all."""

    def side(name, ask):
        joint = JointPass(models[name], ask)
        with joint.forward(nullcontext):
            loss = models[name](**batches[name]).loss
        loss = joint.with_auxiliary(loss)
        loss.backward()
        joint.backward()
        return loss.item(), gradients(models[name])

    runs = [Turns(name, lambda ask, name=name: side(name, ask)) for name in models]
    train_together(runs)
    return {run.name: run.result() for run in runs}


def check(models, batches, *, within=1e-5):
    expected = {}
    for name, model in models.items():
        own = copy.deepcopy(model)
        loss = own(**batches[name]).loss
        loss.backward()
        expected[name] = loss.item(), gradients(own)
    found = together(models, batches)
    for name, (loss, own) in found.items():
        assert loss == pytest.approx(expected[name][0], abs=within), name
        for key in {**own, **expected[name][1]}:  # one that is absent is zero, as of a Longformer's global queries
            pair = [there.get(key, torch.zeros(1)) for there in (own, expected[name][1])]
            pair = torch.broadcast_tensors(*pair)
            torch.testing.assert_close(*pair, rtol=within, atol=within, msg=f"{name}: {key}")


CASES = [
    pytest.param(family, task, packed, marks=[] if (family, task, packed) == BY_DEFAULT else pytest.mark.slow)
    for family in tiny.FAMILIES
    for task in ("SEQ_CLS", "TOKEN_CLS")
    for packed in (True, False)
    if family not in tiny.SEQ2SEQ and task in tiny.tasks(family)
]


@pytest.mark.parametrize(("family", "task", "packed"), CASES)
def test_every_method_at_once(family, task, packed):
    use_packing(packed)
    methods = [*(method for method in METHODS if (method, family) not in EMPTY), *LORAS]
    models = {method: made(method, family, task, seed=seed) for seed, method in enumerate(methods)}
    batches = {method: documents(family, task, seed) for seed, method in enumerate(methods)}
    assert any(auxiliary_loss_of(model.get_base_model()) is not None for model in models.values())
    check(models, batches)


def test_heads_of_other_kinds_and_models_of_other_classes():
    kinds = {"first": ("SEQ_CLS", None), "mean": ("SEQ_CLS", "mean"), "attention": ("SEQ_CLS", "attention")}
    kinds |= {"tags": ("TOKEN_CLS", None), "max": ("SEQ_CLS", "max")}
    models, batches = {}, {}
    for seed, (name, (task, head)) in enumerate(kinds.items()):
        models[name] = made("prefix-tuning" if seed % 2 else "lora", "bert", task, seed=seed, head=head)
        batches[name] = documents("bert", task, seed)
    check(models, batches)


def test_one_model_gets_nothing_of_another_ones_documents():
    models = {name: made("prefix-tuning", "bert", "SEQ_CLS", seed=seed) for seed, name in enumerate("ab")}
    batches = {name: documents("bert", "SEQ_CLS", seed) for seed, name in enumerate("ab")}
    batches["b"]["labels"][:] = -100  # nothing to learn from
    (_, a), (_, b) = together(models, batches).values()
    assert all(gradient.abs().max() > 0 for gradient in a.values())
    assert all(gradient.nan_to_num().abs().max() == 0 for gradient in b.values())


def test_the_models_share_one_frozen_body():
    models = {name: made("prefix-tuning", "bert", "SEQ_CLS", seed=seed) for seed, name in enumerate("ab")}
    together(models, {name: documents("bert", "SEQ_CLS", seed) for seed, name in enumerate("ab")})
    one, other = (
        {p.data_ptr() for n, p in model.named_parameters() if ".encoder." in n and ".foretoken." not in n}
        for model in models.values()
    )
    assert one == other


def test_models_of_different_pretrained_ones_are_refused():
    models = {name: made("lora", "bert", "SEQ_CLS", seed=seed) for seed, name in enumerate("ab")}
    with torch.no_grad():
        models["b"].get_base_model().bert.embeddings.LayerNorm.bias[0] += 1
    with pytest.raises(AdapterError, match=r"b: embeddings\.LayerNorm\.bias is not that of the first model"):
        together(models, {name: documents("bert", "SEQ_CLS", 1) for name in models})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trainable_token_indices": [5]}, "documents of other adapters read as well"),
        ({"modules_to_save": ["classifier", "embeddings.LayerNorm"]}, "documents of other adapters read as well"),
    ],
)
def test_what_all_documents_read_is_nobodys(change, message):
    config = ROWS["prefix-tuning"](task_type="SEQ_CLS", **change)
    models = {"a": get_peft_model(tiny.model("bert", "SEQ_CLS"), config)}
    with pytest.raises(AdapterError, match=f"^a: .*{message}"):
        together(models, {"a": documents("bert", "SEQ_CLS", 1)})


def test_a_head_that_reads_the_prefix_is_refused():
    models = {"a": made("prefix-propagation", "bert", "SEQ_CLS", seed=1, head="prefix")}
    with pytest.raises(AdapterError, match="a: the head reads the prefix"):
        together(models, {"a": documents("bert", "SEQ_CLS", 1)})
