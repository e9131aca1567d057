"""Tiny models that generate, with a tokenizer of words, and sources whose target is a copy of their last words."""

import json
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

from support.tiny import CONFIGS, DECODERS

WORDS = [f"word{index}" for index in range(12)]
COUNT_FROM_ONE = ("bart", "led")  # <s> <pad> </s>; the others <pad> <s> </s>
TEMPLATES = {"bart": "<s> $A </s>", "led": "<s> $A </s>", "t5": "$A </s>", "llama": "<s> $A", "gpt2": "$A"}


def tokenizer_of(family):
    """Return a tokenizer whose tokens are words; its special tokens are those of the tiny configs."""
    special = ["<s>", "<pad>", "</s>", "<unk>"] if family in COUNT_FROM_ONE else ["<pad>", "<s>", "</s>", "<unk>"]
    known = {word: index for index, word in enumerate([*special, *WORDS, "subject", "copy"])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pattern = TEMPLATES[family]
    added = [(token, known[token]) for token in pattern.split() if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=added)
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def model_of(family, **changes):
    """Return a tiny model without dropout, with as many embeddings as there are words."""
    torch.manual_seed(0)
    config = CONFIGS[family]()
    config.vocab_size = len(tokenizer_of(family))
    for name in vars(config):
        if name.endswith(("dropout", "_pdrop", "dropout_rate")):
            setattr(config, name, 0.0)
    for name, value in changes.items():
        setattr(config, name, value)
    auto = AutoModelForCausalLM if family in DECODERS else AutoModelForSeq2SeqLM
    return auto.from_config(config).eval()


def save_model(folder, family, **changes):
    """Save a tiny model and its tokenizer into one folder."""
    model_of(family, **changes).save_pretrained(folder)
    tokenizer_of(family).save_pretrained(folder)
    return folder


def copies(count, *, length=3, seed=0, second=False):
    """Return rows whose target is the source; some of them with a second reference."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        words = " ".join(chance.choices(WORDS, k=length))
        more = [words + " word0"] if second and number % 2 else []
        rows.append({"source": words, "references": [words, *more]})
    return rows


def write_rows(path, rows):
    """Write rows as a file that `foretoken train` reads."""
    lines = [json.dumps({"text": row["source"], "label": row["references"]}) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path
