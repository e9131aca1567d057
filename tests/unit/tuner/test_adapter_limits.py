"""What would not fit, or not end, is refused before anything is made."""

import time

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

from foretoken import (
    AoTPTuningConfig,
    BottleneckAdapterConfig,
    InducerTuningConfig,
    KernelPropagationConfig,
    MAMAdapterConfig,
    PrefixPropagationConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    SelectivePrefixTuningConfig,
    StackConfig,
)
from foretoken.errors import ConfigError
from foretoken.tuner import limits
from foretoken.tuner.limits import check_lora

ENDLESS = r"([\w.]+)+!"
HUGE = 10**9


def bert():
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=50, **size))


@pytest.fixture
def counted(monkeypatch):
    """What was counted, in bytes."""
    found = []
    monkeypatch.setattr(limits, "check_memory", lambda needed, **_: found.append(needed))
    return found


@pytest.mark.parametrize(
    "config",
    [
        AoTPTuningConfig(rank=HUGE),
        AoTPTuningConfig(variant="kronecker", rank=HUGE),
        BottleneckAdapterConfig(bottleneck_size=HUGE),
        InducerTuningConfig(value_bottleneck_size=HUGE),
        KernelPropagationConfig(num_virtual_tokens=HUGE),
        MAMAdapterConfig(num_virtual_tokens=HUGE),
        PrefixPropagationConfig(num_virtual_tokens=HUGE),
        PrefixTuningConfig(prefix_projection=True, encoder_hidden_size=HUGE),
        PrefixTuningConfig(num_virtual_tokens=10**30),
        PromptTuningConfig(num_virtual_tokens=HUGE),
        SelectivePrefixTuningConfig(num_virtual_tokens=HUGE),
        StackConfig(configs=[PrefixTuningConfig(), LoraConfig(r=HUGE)]),
        StackConfig(configs=[PrefixTuningConfig(num_virtual_tokens=HUGE), LoraConfig()]),
    ],
    ids=lambda config: type(config).__name__,
)
def test_what_does_not_fit_is_refused_before_it_is_made(config):
    model = bert()
    before = set(dict(model.named_modules()))
    with pytest.raises(ConfigError, match=r"GB of memory and .* are free|sizes that no tensor can have"):
        get_peft_model(model, config)
    assert set(dict(model.named_modules())) == before


@pytest.mark.parametrize(
    "config",
    [
        PrefixTuningConfig(prefix_projection=True),
        AoTPTuningConfig(),
        AoTPTuningConfig(variant="kronecker"),
        SelectivePrefixTuningConfig(),
        StackConfig(configs=[MAMAdapterConfig(), LoraConfig(r=3)], modules_to_save=["pooler"]),
    ],
    ids=lambda config: type(config).__name__,
)
def test_what_is_counted_is_what_is_made(config, counted):
    model = get_peft_model(bert(), config)
    made = {id(p): p.numel() for p in model.parameters() if p.requires_grad}
    assert sum(counted) == 4 * sum(made.values())


def test_counting_draws_no_random_number(monkeypatch):
    def weights():
        torch.manual_seed(3)
        model = get_peft_model(bert(), PrefixTuningConfig(num_virtual_tokens=4))
        return torch.cat([p.flatten() for p in model.parameters() if p.requires_grad])

    first = weights()
    monkeypatch.setattr("foretoken.tuner.tuner.check_fits", lambda *_: None)
    assert torch.equal(first, weights())


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ENDLESS},
        {"target_modules": ["query"], "exclude_modules": ENDLESS},
        {"target_modules": ["query"], "layers_to_transform": [0], "layers_pattern": ENDLESS},
        {"target_modules": ["query"], "rank_pattern": {ENDLESS: 4}},
        {"target_modules": ["query"], "alpha_pattern": {ENDLESS: 4}},
        {"target_modules": ["query"], "modules_to_save": [ENDLESS]},
    ],
    ids=lambda options: list(options)[-1],
)
def test_a_regular_expression_without_end_is_refused(options, monkeypatch):
    monkeypatch.setattr("foretoken.tuner.limits.SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"takes more than 0.5 seconds to match .*; give a list of plain names"):
        check_lora(LoraConfig(**options), bert())
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("pattern", ["(", "(" * 5000, "a{4294967296}", "[z-a]"])
def test_what_is_no_regular_expression_is_refused(pattern):
    with pytest.raises(ConfigError, match="cannot be matched"):
        check_lora(LoraConfig(target_modules=pattern), bert())
