"""Prefix-propagation, prefix-tuning and prompt tuning against loops over the papers' equations, in float64."""

import pytest
import torch
from peft import get_peft_model

from foretoken import PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig

from support import naive, tiny

P, N = 3, 10
LENGTHS = (N, 7)


def forward(model, ids, length, *, rows=None, adds=None, prefixes=None):
    """One document through the stack by hand: last hidden states (N, D) of the text.

    ``rows``: (P, D) in front of layer 0 (eq. 1 of Li et al. 2023); ``adds[l]``: (P, D) added before layer l > 0;
    ``prefixes[l]``: (P, 2 H K) keys and values of layer l.
    """
    config = model.config
    heads = config.num_attention_heads
    sparse = config.model_type == "longformer"
    x = model.embeddings(ids[None])[0].double()
    count = 0 if rows is None else rows.shape[0]
    real = [True] * count + [i < length for i in range(len(ids))]
    is_global = [True] * count + [False] * len(ids)  # a bare Longformer has no global tokens but the prefix
    if rows is not None:
        x = torch.cat([rows, x])
    for index, layer in enumerate(model.encoder.layer):
        if adds is not None and index > 0:
            x = torch.cat([x[:count] + adds[index], x[count:]])
        both = None
        if prefixes is not None:
            keys, values = prefixes[index].chunk(2, dim=-1)
            both = list(zip(naive.heads(keys, heads), naive.heads(values, heads), strict=True))
        attended = naive.self_attention(
            layer.attention.self,
            heads,
            x,
            real,
            prefix=both,
            window=config.attention_window[index] // 2 if sparse else None,
            is_global=is_global,
        )
        x = naive.encoder_layer(layer, x, attended)
    return x[count:]


def adapted(family, config):
    """Return a float64 bare model with the adapter, and its parameters per layer."""
    model = get_peft_model(tiny.model(family, "FEATURE_EXTRACTION").double(), config).double().eval()
    tiny.shaken(model, scale=0.5)
    named = {k: v.detach() for k, v in model.named_parameters() if ".foretoken." in k}
    return model, [v for k, v in sorted(named.items())]


def assert_equal_by_hand(model, family, **expected):
    ids = torch.randint(5, 100, (2, N))
    mask = torch.tensor([[i < length for i in range(N)] for length in LENGTHS]).long()
    pad = model.config.pad_token_id
    ids = ids.where(mask.bool(), pad)
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask).last_hidden_state
        body = model.get_base_model()
        with model.disable_adapter():
            for b, length in enumerate(LENGTHS):
                by_hand = forward(body, ids[b], length, **expected)
                torch.testing.assert_close(out[b, :length], by_hand[:length], atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", ["bert", "roberta", "longformer"])
def test_prefix_propagation_equals_equation_1(family):
    model, layers = adapted(family, PrefixPropagationConfig(num_virtual_tokens=P))
    assert [tuple(x.shape) for x in layers] == [(P, 32)] * 3
    assert_equal_by_hand(model, family, rows=layers[0], adds=layers)


@pytest.mark.parametrize("family", ["bert", "longformer"])
def test_prefix_tuning_equals_its_equation(family):
    model, layers = adapted(family, PrefixTuningConfig(num_virtual_tokens=P))
    assert [tuple(x.shape) for x in layers] == [(P, 64)] * 3
    assert_equal_by_hand(model, family, prefixes=layers)


@pytest.mark.parametrize("family", ["bert", "longformer"])
def test_prompt_tuning_is_rows_at_layer_0_only(family):
    model, layers = adapted(family, PromptTuningConfig(num_virtual_tokens=P))
    assert len(layers) == 1
    assert_equal_by_hand(model, family, rows=layers[0])


@pytest.mark.parametrize("family", ["bert", "longformer"])
def test_projection_is_a_two_layer_network_over_all_layers(family):
    """tanh(E W1 + b1) W2 + b2 with W2 (M, L D): each layer holds its own columns."""
    config = PrefixPropagationConfig(num_virtual_tokens=P, prefix_projection=True, encoder_hidden_size=5)
    model = get_peft_model(tiny.model(family, "FEATURE_EXTRACTION").double(), config).double().eval()
    tiny.shaken(model, scale=0.5)
    named = {k.split(".foretoken.default.")[-1]: v.detach() for k, v in model.named_parameters() if ".shared." in k}
    w2 = [v.detach() for k, v in model.named_parameters() if k.endswith("prefix.linear.weight")]
    b2 = [v.detach() for k, v in model.named_parameters() if k.endswith("prefix.linear.bias")]
    hidden = named["prefix.shared.embedding.weight"] @ named["prefix.shared.linear.weight"].T
    hidden = torch.tanh(hidden + named["prefix.shared.linear.bias"])
    whole = hidden @ torch.cat(w2).T + torch.cat(b2)  # (P, L D)
    layers = list(whole.view(P, 3, 32).unbind(1))
    assert_equal_by_hand(model, family, rows=layers[0], adds=layers)


def test_longformer_prefix_reaches_every_token_of_a_long_document():
    """Rows in front are global: a change of the prefix changes tokens far outside the window, in the first layer."""
    model, _ = adapted("longformer", PrefixPropagationConfig(num_virtual_tokens=P))
    ids = torch.randint(5, 100, (1, 60))
    with torch.no_grad():
        before = model(input_ids=ids, output_hidden_states=True).hidden_states[1]
        tiny.shaken(model, scale=0.5, seed=9)
        after = model(input_ids=ids, output_hidden_states=True).hidden_states[1]
    assert ((before - after).abs().amax(-1) > 1e-3).all()
