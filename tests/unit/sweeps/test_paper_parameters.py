"""The papers' sweeps: what every row trains, counted on models of the real sizes, without their weights."""

from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as tf

from foretoken.sweeps.plan import load_plan
from foretoken.training.model.adapter import build_config
from foretoken.tuner.tuner import new_sites

from support.small_sweeps import covering

FOLDER = Path(__file__).resolve().parents[3] / "recipes" / "papers"
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
CONFIGS = {
    "openai-community/gpt2": lambda: tf.GPT2Config(),
    "FacebookAI/roberta-base": lambda: tf.RobertaConfig(**ROBERTA),
    "FacebookAI/roberta-large": lambda: tf.RobertaConfig(**ROBERTA, **LARGE),
    "google-bert/bert-base-cased": lambda: tf.BertConfig(vocab_size=28996),
    "google-bert/bert-large-cased": lambda: tf.BertConfig(vocab_size=28996, **LARGE),
    "google-bert/bert-base-uncased": lambda: tf.BertConfig(),
    "google-bert/bert-large-uncased": lambda: tf.BertConfig(**LARGE),
    "allenai/longformer-base-4096": lambda: tf.LongformerConfig(
        vocab_size=50265, max_position_embeddings=4098, type_vocab_size=1, attention_window=512
    ),
}
TABLES = {  # percent of the model, as the papers' tables have it: trained, rounded to so many decimals
    "inducer-tuning-nlg": {  # Tables 1 and 3, "train"
        "inducer": 1.61,
        "inducer-lora": 1.61,
        "mam-inducer": 1.61,
        "adaptive": 1.62,
        "extension": 1.55,
        "gating": 1.61,
        "prefix-tuning-108": 7.98,
        "adapter-108": 1.62,
        "lora-54": 1.61,
        "mam-adapter": 1.61,
        "fine-tuning": 100.0,
    },
    "inducer-tuning-nlu": {  # Table 2
        **dict.fromkeys(
            ("inducer", "inducer-lora", "mam-inducer", "prefix-tuning", "lora", "adapter", "mam-adapter"), 0.5
        ),
        "bitfit": 0.1,
        "fine-tuning": 100.0,
    },
}
NEAR = {"inducer-tuning-nlg": 0.015, "inducer-tuning-nlu": 0.05}  # percent: the recipes' heads say what differs


@cache
def body(name):
    with torch.device("meta"):
        return tf.AutoModel.from_config(CONFIGS[name]())


@cache
def plan(name):
    return load_plan(FOLDER / f"{name}.yaml")


def trained(model, method):
    """Return how many parameters of the model and of the method are trained, the task's head aside."""
    config = build_config(method)
    if config is None:
        return sum(parameter.numel() for parameter in body(model).parameters())
    with torch.device("meta"):
        sites = new_sites(config, body(model))
    parameters = {id(one): one.numel() for module in sites.modules() for one in module.parameters()}
    return sum(parameters.values())


@pytest.mark.parametrize("name", TABLES)
def test_every_row_trains_the_share_that_the_paper_prints(name):
    found = {}
    for variant in plan(name).variants:
        model, method = variant.values["model"], variant.values["method"]
        total = sum(parameter.numel() for parameter in body(model).parameters())
        found.setdefault(variant.compared["method"], set()).add(100 * trained(model, method) / total)
    assert set(found) == set(TABLES[name])
    for row, shares in found.items():
        assert len(shares) == 1, row  # the same on both tasks
        assert shares.pop() == pytest.approx(TABLES[name][row], abs=NEAR[name]), row


def formula(config, method):
    """Return the count of a method by the papers' own formulas."""
    layers, width, vocabulary = config.num_hidden_layers, config.hidden_size, config.vocab_size
    length, rank = method.get("num_virtual_tokens"), method.get("rank")
    if method["name"] in ("prefix-propagation", "kernel-propagation"):
        return layers * length * width
    if method["name"] in ("prefix-tuning", "selective-prefix-tuning"):
        return 2 * layers * length * width  # Gavrilov and Balagansky, Table 1
    if method["name"] == "prompt-tuning":
        return length * width
    if method.get("variant") == "fc":  # the same table, which has the two rows swapped; FC has a second bias
        return layers * (2 * rank * width + rank + width)
    if method.get("variant") == "kronecker":
        first, second = method["factors"]
        assert first * second >= vocabulary
        return layers * rank * (first + second + rank * width)
    raise AssertionError(method)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "aot-p-tuning" else name
        for name in sorted({file.stem for file in FOLDER.glob("*.yaml")} - set(TABLES))
    ],
)
def test_rows_without_a_printed_share_have_the_papers_formula(name):
    for variant in plan(name).variants:
        model = variant.values["model"]
        if variant.values["method"]["name"] == "full":
            continue
        for params in covering(variant):
            searched = {key.removeprefix("method."): some for key, some in params.items() if key.startswith("method.")}
            method = dict(variant.values["method"]) | searched
            assert trained(model, method) == formula(CONFIGS[model](), method), (variant.name, method)


def test_what_the_papers_say_of_their_sizes():
    assert trained("allenai/longformer-base-4096", {"name": "prefix-propagation", "num_virtual_tokens": 8}) == 73_728
    assert trained("openai-community/gpt2", {"name": "prefix-tuning", "num_virtual_tokens": 108}) / 124_439_808 == (
        pytest.approx(0.0160, abs=5e-5)  # Chen et al. 2022, Table 1: stored
    )
    method = {"name": "aot-p-tuning", "variant": "kronecker", "rank": 20, "factors": [256, 200]}
    assert trained("FacebookAI/roberta-large", method) == pytest.approx(1e7, rel=0.01)  # Section 4.2: roughly 10M
