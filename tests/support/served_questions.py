"""Tiny models with adapters that answer questions, choose and classify, as training saves them."""

from foretoken.files import write_json

from support import tiny
from support.saved import tokenizer_of
from support.table import adapted

ASKED = {"problem": "question-answering", "labels": [], "no_answer": True, "max_length": 32}
CHOSEN = {"problem": "multiple-choice", "labels": [], "max_length": 48}


def save(root, family, adapters):
    """Return the folder of a tiny model, and those of adapters: (method, task, outputs, card) by name."""
    base = root / "base"
    tiny.model(family, "SEQ_CLS").save_pretrained(base)
    tokenizer_of(family).save_pretrained(base)
    folders = {}
    for seed, (name, (method, task, more, card)) in enumerate(adapters.items()):
        adapter = tiny.shaken(adapted(tiny.model(family, task, **more), method, task_type=task), seed=seed)
        adapter.peft_config["default"].base_model_name_or_path = str(base)
        folders[name] = root / name
        adapter.save_pretrained(folders[name])
        write_json(folders[name] / "foretoken.json", card)
    return base, folders
