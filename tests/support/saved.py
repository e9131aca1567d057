"""Adapter folders as `foretoken train` leaves them, with random weights: nothing is trained."""

import json
import re
import subprocess
import sys

from foretoken import replace_head

from support import tiny
from support.table import adapted
from support.tiny_run import make_tokenizer

LABELS = ("ham", "spam", "news")
WITHOUT_TORCH = "import sys\nfor name in ('torch', 'transformers', 'peft', 'foretoken'): sys.modules[name] = None\n"


def save_adapter(
    folder, family="bert", method="prefix-propagation", *, base=None, task="SEQ_CLS", seed=3, head=None, **card
):
    """Write base model, adapter, tokenizer and card below a folder; return the adapter's."""
    base = base or save_base(folder.with_name(folder.name + "-base"), family, task)
    model = model_of(family, task)
    if card.get("problem") == "regression":
        model = tiny.model(family, task, num_hidden_layers=1, num_labels=max(1, len(card["labels"])))
    if head is not None:
        replace_head(model, **head)
    model.config.name_or_path = str(base)
    adapter = tiny.shaken(adapted(model, method, task_type=task), seed=seed)
    adapter.peft_config["default"].base_model_name_or_path = str(base)
    adapter.save_pretrained(folder)
    tokenizer_of(family).save_pretrained(folder)
    recipe = {"model": str(base)} | ({} if head is None else {"head": head}) | card.pop("recipe", {})
    values = {"problem": "classification", "labels": list(LABELS), "recipe": recipe}
    (folder / "foretoken.json").write_text(json.dumps(values | card))
    return folder


def save_base(folder, family="bert", task="SEQ_CLS"):
    """Write the model that adapters are trained on."""
    model_of(family, task).save_pretrained(folder)
    tokenizer_of(family).save_pretrained(folder)
    return folder


def model_of(family, task):
    """Return a model of one layer."""
    model = tiny.model(family, task, **({} if family in tiny.SEQ2SEQ else {"num_hidden_layers": 1}))
    model.config.id2label = dict(enumerate(LABELS))
    return model


def tokenizer_of(family):
    """Return a tokenizer of words whose padding is the family's."""
    tokenizer = make_tokenizer()
    pad = tiny.config_of(family).pad_token_id
    if pad:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad)
    return tokenizer


def said_by_the_readme(folder, texts):
    """Return what the Python code of an exported folder prints of texts, without torch and what comes with it."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    for example in ('"one text", "and another one"', '("one text", "and its second one")'):
        code = code.replace(example, ", ".join(map(repr, texts)))
    command = [sys.executable, "-c", WITHOUT_TORCH + code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [eval(line) for line in done.stdout.splitlines()]
