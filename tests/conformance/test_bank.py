"""A bank of adapters: a batch in which every document has its own gives what peft gives each document by itself."""

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

from foretoken import AdapterBank
from foretoken.attention.choose import use_packing
from foretoken.attention.packed import parts as packed_batches

from support import tiny
from support.table import EMPTY, METHODS, ROWS

BASE = "__base__"
BY_DEFAULT = (("bert", "SEQ_CLS"), ("longformer", "SEQ_CLS"), ("llama", "CAUSAL_LM"))
LORAS = {"lora": {"r": 2, "lora_alpha": 4}, "lora, wider": {"r": 3, "use_rslora": True}}
LENGTH = 12


def config_of(method, task, family):
    if method in LORAS:
        from foretoken.backbones import BACKBONES

        backbone = BACKBONES[tiny.config_of(family).model_type]
        targets = list(backbone.projections)
        heads = ["classifier", "score", "pre_classifier", "head", "sequence_summary"]
        heads = None if task == "CAUSAL_LM" else [*heads, *([] if backbone.idle_poolers else ["pooler"])]
        transposed = family == "gpt2"
        more = {"target_modules": targets, "modules_to_save": heads, "fan_in_fan_out": transposed}
        return LoraConfig(task_type=task, **LORAS[method], **more)
    return ROWS[method](task_type=task)


def made(method, family, task, *, seed, **changes):
    """Return an adapted model of its own, nothing of it neutral."""
    model = get_peft_model(tiny.model(family, task, **changes), config_of(method, task, family)).eval()
    tiny.shaken(model, scale=0.3, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".modules_to_save." in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def methods_of(family, task):
    """Return the methods that can be had; two adapters of each, so that both share a form."""
    empty = EMPTY | ({("head-only", family): "the head is the model's own"} if task == "CAUSAL_LM" else {})
    return [*(method for method in METHODS if (method, family) not in empty), *LORAS]


def batch(family, size):
    """Return documents of different lengths."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, 100, (size, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (size,), generator=generator)
    lengths[0] = LENGTH
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    padding = tiny.config_of(family).pad_token_id or 0
    return ids.where(mask.bool(), padding), mask


def alone(model, ids, mask, row):
    """Return what a model gives one document."""
    length = int(mask[row].sum())
    with torch.no_grad():
        return tiny.first(model(input_ids=ids[row : row + 1, :length], attention_mask=mask[row : row + 1, :length]))[0]


def check_bank(family, task, monkeypatch):
    methods = methods_of(family, task)
    bank, (ids, mask) = AdapterBank(tiny.model(family, task)), batch(family, 1 + 2 * len(methods))
    names, expected = [BASE], [alone(tiny.model(family, task), ids, mask, 0)]
    for method in methods:
        for seed in (1, 2):
            model = made(method, family, task, seed=seed)
            expected.append(alone(model, ids, mask, len(names)))
            names.append(f"{method} {seed}".replace(".", ""))
            bank.add(names[-1], model.peft_config["default"], get_peft_model_state_dict(model))
    early = [row for row, name in enumerate(names) if "upper layers" not in name]  # prefixes that enter late are padded
    for rows, packed, apart_from in (
        (list(range(len(names))), None, None),
        (early, True, None),
        (early, True, -1),  # each document's attention by itself, however little there is of it
        (early, False, None),
    ):
        use_packing(packed)
        if apart_from is not None:
            monkeypatch.setattr(packed_batches, "APART_FROM", apart_from)
        with torch.no_grad():
            found = bank(ids[rows], mask[rows], adapter_names=[names[row] for row in rows]).logits
        wrong = {}
        for row, own in zip(rows, found, strict=True):
            apart = (own - expected[row]).abs().max().item()
            if not apart < 2e-5:
                wrong[names[row]] = apart
        assert not wrong, (packed, apart_from)


CASES = [
    pytest.param(family, task, marks=[] if (family, task) in BY_DEFAULT else pytest.mark.slow)
    for family in tiny.FAMILIES
    for task in ("SEQ_CLS", "TOKEN_CLS", "CAUSAL_LM")
    if family not in tiny.SEQ2SEQ and task in tiny.tasks(family)
]


@pytest.mark.parametrize(("family", "task"), CASES)
def test_every_method_in_one_batch(family, task, monkeypatch):
    check_bank(family, task, monkeypatch)
