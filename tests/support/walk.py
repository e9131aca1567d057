"""What a reader walks through: the files that a call enters, and how often it is sent back to one that it had left.

In `tests`: ``python -m support.walk``.
"""

import sys
from collections import Counter
from itertools import product
from pathlib import Path

import torch
from peft import get_peft_model_state_dict

import foretoken
from foretoken import AdapterBank
from foretoken.attention.choose import use_packing

from support import tiny
from support.packed import batch
from support.table import adapted

SOURCE = str(Path(foretoken.__file__).parent) + "/"
# the products of frozen linear maps, which every model has, and a look-up in a module's dictionary
APART = ("machine/", "backbones/fast_maps.py", "backbones/module_value.py")
FORMS = ("prefix-propagation", "prefix-tuning", "inducer-tuning", "decoupled-prefix")


def walk(module, run, *, packed):
    """Return the files of ours that are entered inside a module during a run, and how often each is."""
    entered, here = Counter(), ""

    def note(frame, event, _):
        nonlocal here
        path = frame.f_code.co_filename
        name = path.removeprefix(SOURCE)
        if event == "call" and name not in (path, here) and not name.startswith(APART):
            entered[name], here = entered[name] + 1, name

    before = module.register_forward_pre_hook(lambda *_: sys.setprofile(note), prepend=True)
    after = module.register_forward_hook(lambda *_: sys.setprofile(None), always_call=True)
    use_packing(packed)
    with torch.no_grad():
        run()
    use_packing(None)
    before.remove()
    after.remove()
    return entered


def longformer_layer(*, packed):
    """Walk through the second of three layers of Longformer with prefix-propagation; three documents."""
    model, inputs = (
        adapted(tiny.model("longformer"), "prefix-propagation", task_type="SEQ_CLS"),
        batch("longformer", "SEQ_CLS"),
    )
    return walk(model.base_model.model.longformer.encoder.layer[1], lambda: model(**inputs), packed=packed)


def bank_attention(*, packed):
    """Walk through the attention of the second of three layers of BERT; four documents, each with its own method."""
    bank, inputs = AdapterBank(tiny.model("bert")), batch("bert", "SEQ_CLS", size=4)
    for method in FORMS:
        model = adapted(tiny.model("bert"), method, task_type="SEQ_CLS")
        bank.add(method, model.peft_config["default"], get_peft_model_state_dict(model))
    attention = bank.model.bert.encoder.layer[1].attention.self
    given = inputs["input_ids"], inputs["attention_mask"]
    return walk(attention, lambda: bank(*given, adapter_names=list(FORMS)), packed=packed)


if __name__ == "__main__":
    for way, packed in product((longformer_layer, bank_attention), (True, False)):
        files = way(packed=packed)
        print(
            f"{way.__name__}, packed {packed}: {len(files)} files, {files.total() - len(files)} returns; {dict(files)}"
        )
