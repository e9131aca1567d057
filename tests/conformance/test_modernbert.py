"""ModernBERT: what the family adds to the table, against its layers written out with loops in float64."""

import math
from functools import partial

import pytest
import torch
from transformers.models.modernbert import modeling_modernbert

from support import tiny
from support.naive_functions import gelu, layer_norm, rotated, softmax
from support.table import adapted

P, HEADS, WIDTH = 3, 4, 8
REACH = 2  # half of the tiny model's window


@pytest.fixture
def float64_rotation(monkeypatch):
    """ModernBERT rotates in float32 whatever the model's type is."""

    def apply(query, key, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        half = modeling_modernbert.rotate_half
        return query * cos + half(query) * sin, key * cos + half(key) * sin

    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", apply)


def exact_angles(config, x, position_ids, layer_type):
    exponents = torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH
    angles = position_ids[..., None].double() * config.rope_parameters[layer_type]["rope_theta"] ** -exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def exact(method, **options):
    """Return an adapted bare model in float64, transformers' part of it exact in that type."""
    plain = tiny.model("modernbert", "FEATURE_EXTRACTION")
    plain.rotary_emb.forward = partial(exact_angles, plain.config)
    return tiny.shaken(adapted(plain.double(), method, **options).double())


def weights_of(model):
    """Return every parameter by its name in the frozen model; an adapter's by `layers.0.prefix` and the like."""
    names = {name.removeprefix("base_model.model."): parameter for name, parameter in model.named_parameters()}
    return {name.replace("foretoken.default.", "").replace(".attn.prefix", ".prefix"): p for name, p in names.items()}


def naive_layer(weights, config, number, x, rows):
    """One layer, (P + N, D) -> (P + N, D); `rows` says how many of x stand in front of the text."""

    def norm(name, x):
        given = weights.get(f"layers.{number}.{name}.weight")
        return x if given is None else layer_norm(x, given, 0.0, config.norm_eps)

    attended = naive_attention(weights, config, number, norm("attn_norm", x), rows)
    x = x + attended @ weights[f"layers.{number}.attn.Wo.weight"].T
    inner, gate = (norm("mlp_norm", x) @ weights[f"layers.{number}.mlp.Wi.weight"].T).chunk(2, dim=-1)
    return x + (gelu(inner) * gate) @ weights[f"layers.{number}.mlp.Wo.weight"].T


def naive_attention(weights, config, number, x, rows):
    kind = config.layer_types[number]
    theta = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}[kind]
    projected = (x @ weights[f"layers.{number}.attn.Wqkv.weight"].T).view(len(x), 3, HEADS, WIDTH)
    keys, values = prefix_of(weights, number)
    out = torch.empty(len(x), HEADS, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        query, key = (
            [rotated(v, max(i - rows, 0), theta) for i, v in enumerate(projected[:, part, head])] for part in (0, 1)
        )
        for i in range(len(x)):
            seen = [j for j in range(len(x)) if sees(kind, i - rows, j - rows)]
            scores = [query[i] @ key[j] for j in seen] + [query[i] @ k for k in keys[:, head]]
            probabilities = softmax(torch.stack(scores) / math.sqrt(WIDTH))
            out[i, head] = probabilities @ torch.cat([projected[seen, 2, head], values[:, head]])
    return out.flatten(1)


def sees(kind, i, j):
    """Tell whether i sees j; rows in front have negative numbers."""
    return kind == "full_attention" or i < 0 or j < 0 or abs(i - j) <= REACH


def prefix_of(weights, number):
    """Return prefix-tuning's keys and values of a layer, (P, H, K) each; none where there is no such prefix."""
    both = weights.get(f"layers.{number}.prefix.weight")
    if both is None or both.shape[1] != 2 * HEADS * WIDTH:
        return torch.zeros(2, 0, HEADS, WIDTH, dtype=torch.float64)
    return both.view(-1, 2, HEADS, WIDTH).unbind(1)


def naive_model(model, ids):
    """One document (N,) -> (N, D), by hand."""
    weights, config = weights_of(model), model.config
    x = layer_norm(
        weights["embeddings.tok_embeddings.weight"][ids], weights["embeddings.norm.weight"], 0.0, config.norm_eps
    )
    rows = 0
    for number in range(config.num_hidden_layers):
        own = weights.get(f"layers.{number}.prefix.weight")
        if own is not None and own.shape[1] == HEADS * WIDTH:
            x = torch.cat([own, x]) if number == 0 else torch.cat([x[:P] + own, x[P:]])
            rows = P
        x = naive_layer(weights, config, number, x, rows)
    return layer_norm(x, weights["final_norm.weight"], 0.0, config.norm_eps)[rows:]


@pytest.mark.usefixtures("float64_rotation")
@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning"])
def test_the_model_is_what_the_loops_compute(method):
    """Documents longer than the window, one of them padded: rows without rotation, seen in local layers too."""
    model = exact(method)
    inputs = tiny.batch("modernbert", "FEATURE_EXTRACTION")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
        for row, length in enumerate((20, 14)):
            expected = naive_model(model, inputs["input_ids"][row, :length])
            torch.testing.assert_close(states[row, :length], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning", "kernel-propagation", "inducer-tuning"])
def test_a_token_masked_in_the_midst_moves_no_other(method):
    """A document without the adapter is as in the frozen model, distances included."""
    plain = tiny.model("modernbert", "FEATURE_EXTRACTION")
    inputs = {"input_ids": torch.randint(5, 100, (2, 16)), "attention_mask": torch.ones(2, 16, dtype=torch.long)}
    inputs["attention_mask"][:, [3, 4, 9]] = 0
    with torch.no_grad():
        expected = plain(**inputs).last_hidden_state
        model = tiny.shaken(adapted(plain, method))
        states = model(**inputs, adapter_names=["__base__", "default"]).last_hidden_state
    torch.testing.assert_close(states[0], expected[0], atol=2e-5, rtol=2e-5)
    assert (states[1] - expected[1]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("task", ["SEQ_CLS", "MULTIPLE_CHOICE"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_pooling_reads_the_text_alone(pooling, task):
    """What the head gets is the first row, or the mean, of what a bare model gives for the unpadded text."""
    model = tiny.model("modernbert", task, classifier_pooling=pooling)
    model = tiny.shaken(adapted(model, "prefix-propagation", task_type=tiny.peft_task(task)))
    inner = model.get_base_model()
    inputs = tiny.batch("modernbert", task, labels=False)
    seen = []
    inner.head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(**inputs)
        ids, mask = (x.flatten(0, -2) for x in inputs.values())
        states = [inner.model(input_ids=one[None, :n])[0][0] for one, n in zip(ids, mask.sum(-1), strict=True)]
    expected = torch.stack([x[0] if pooling == "cls" else x.mean(0) for x in states])
    torch.testing.assert_close(seen[0], expected, atol=2e-5, rtol=2e-5)
