"""The attention mass of a prefix against the softmax share that naive float64 models compute by hand."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model

from foretoken import (
    InducerTuningConfig,
    KernelPropagationConfig,
    PrefixPropagationConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    SelectivePrefixTuningConfig,
)
from foretoken.attention import choose as settings
from foretoken.backbones.base import ADAPTER
from foretoken.errors import AdapterError
from foretoken.inference.analysis import analyse
from foretoken.inference.observe import observing
from foretoken.methods.inducer_tuning import InducerColumns
from foretoken.tuner.attention.adapter import TunedAttention

from support import naive_edits, tiny
from support.adapted import adapted, by_place, trained
from support.families import FAMILIES, LENGTHS, NUM_HEADS, batch, documents, oracle, transformer
from support.naive_models import plain_attention

P, ALPHA = 3, 4.0
CONFIGS = {
    "prefix-tuning": PrefixTuningConfig(num_virtual_tokens=P),
    "selective-prefix-tuning": SelectivePrefixTuningConfig(num_virtual_tokens=P, alpha=ALPHA),
    "prefix-propagation": PrefixPropagationConfig(num_virtual_tokens=P),
    "prompt-tuning": PromptTuningConfig(num_virtual_tokens=P),
}


def edits_of(method, places):
    """Return the naive edits of a method, and each layer's prefix of keys where it has one."""
    if method in ("prefix-propagation", "prompt-tuning"):
        rows = [places[layer, "layer"]["prefix.weight"] for layer in range(3 if method == "prefix-propagation" else 1)]
        edits = naive_edits.prompt_tuning(rows[0]) if len(rows) == 1 else naive_edits.prefix_propagation(rows)
        return edits, None
    both = [places[layer, "attention"]["prefix.weight"] for layer in range(3)]
    if method == "prefix-tuning":
        return naive_edits.prefix_tuning(both), both
    return naive_edits.selective_prefix_tuning(both, alpha=ALPHA), both


def share(seen, prefix, *, alpha=None):
    """Return the share of one query's softmax on the prefix, and the gates of its columns, term by term."""
    text = [math.exp(float(key @ seen.query) * seen.scale) for key in seen.keys]
    on_rows = sum(term for term, row in zip(text, seen.from_row, strict=True) if row)
    if prefix is None:
        return on_rows / sum(text), []
    keys, _ = naive_edits.head_columns(prefix, seen)
    scores = [float(key @ seen.query) * seen.scale for key in keys]
    gates = [1.0 if alpha is None else 1 / (1 + math.exp(-alpha * score)) for score in scores]
    columns = sum(gate * math.exp(score) for gate, score in zip(gates, scores, strict=True))
    return columns / (columns + sum(text)), gates


def by_hand(family, method, leaves, global_tokens):
    """Return (layer, head) -> the shares of all text queries, and the same for gates."""
    shares, gates = {}, {}
    rows = P if method in ("prefix-propagation", "prompt-tuning") else 0
    alpha = ALPHA if method.startswith("selective") else None
    for ids in documents():
        edits, prefixes = edits_of(method, by_place(leaves))
        for layer in range(3):
            inner, asked = edits.attend.get(layer, plain_attention), []

            def attend(seen, layer=layer, inner=inner, asked=asked, prefixes=prefixes):
                asked.append(seen)
                if len(asked) > rows * NUM_HEADS:  # the queries of the rows come first
                    one, columns = share(seen, None if prefixes is None else prefixes[layer], alpha=alpha)
                    shares.setdefault((layer, seen.head), []).append(one)
                    gates.setdefault((layer, seen.head), []).extend(columns)
                return inner(seen)

            edits.attend[layer] = attend
        oracle(family)(ids, edits, global_tokens=global_tokens)
    return shares, gates


def alone(ids):
    return {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}


def each():
    return [alone(ids) for ids in documents()]


def observed(model, batches=None):
    with observing(model) as watch, torch.inference_mode():
        for inputs in batches or each():
            watch.text = inputs["attention_mask"].bool()
            model(**inputs)
    return list(watch.seen.values())


def with_global_tokens(model, tokens):
    """Let the bare model have global tokens, as a Longformer with a head has."""

    def add(module, args, kwargs):
        mask = torch.zeros_like(kwargs["input_ids"])
        mask[:, list(tokens)] = 1
        return args, kwargs | {"global_attention_mask": mask}

    model.register_forward_pre_hook(add, with_kwargs=True)


@pytest.mark.covering
@pytest.mark.parametrize("method", CONFIGS)
@pytest.mark.parametrize("family", [*FAMILIES, "longformer, global"])
def test_mass_is_the_share_of_the_softmax(family, method):
    family, _, has_global = family.partition(", ")
    tokens = (0, 5) if has_global else ()
    model = adapted(family, CONFIGS[method])
    if tokens:
        with_global_tokens(model, tokens)
    leaves = {key: parameter.detach() for key, parameter in trained(model).items()}
    shares, gates = by_hand(family, method, leaves, tokens)
    seen = observed(model)
    assert [one.layer for one in seen] == [0, 1, 2]
    for one in seen:
        assert one.queries == sum(LENGTHS)
        for head in range(NUM_HEADS):
            expected = shares[one.layer, head]
            assert len(expected) == one.queries
            assert one.mass[head].item() / one.queries == pytest.approx(sum(expected) / len(expected), abs=1e-9)
            if one.selected is not None:
                expected = gates[one.layer, head]
                assert one.selected.entries == len(expected) == sum(LENGTHS) * P
                assert one.selected.gates[head].item() == pytest.approx(sum(expected), abs=1e-8)
    assert all((one.selected is not None) == method.startswith("selective") for one in seen)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("family", ["bert", "longformer", "llama"])
def test_observing_changes_nothing(family, packing):
    model = adapted(family, CONFIGS["prefix-propagation"])
    ids = documents()[0][None]
    settings.use_packing(packing)
    try:
        with torch.inference_mode():
            before = model(input_ids=ids).last_hidden_state
            with observing(model) as watch:
                watch.text = torch.ones_like(ids, dtype=torch.bool)
                during = model(input_ids=ids).last_hidden_state
            after = model(input_ids=ids).last_hidden_state
    finally:
        settings.use_packing(None)
    torch.testing.assert_close(during, before, atol=1e-12, rtol=0)
    assert torch.equal(after, before)
    adapters = [adapter for module in model.modules() if (adapter := ADAPTER.get(module)) is not None]
    assert {type(adapter) for adapter in adapters} == {TunedAttention}
    assert not any(adapter.observer for adapter in adapters)
    assert watch.seen


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_is_observed(family):
    config = PrefixPropagationConfig(task_type=tiny.peft_task(tiny.main_task(family)), num_virtual_tokens=P)
    model = tiny.shaken(get_peft_model(tiny.model(family), config)).eval()
    ids = tiny.batch(family)["input_ids"][0]
    found = analyse(model, [alone(ids)])
    layers = found["attention_mass"]
    assert len(layers) == len(found["attentions"]) == len(set(found["attentions"]))
    assert all(0 < mass < 1 for heads in layers for mass in heads)
    assert found["tokens"] == len(ids)


def test_inducer_has_its_lambda(monkeypatch):
    """The mass of its one column is what the branch itself is given."""
    given = []
    combine = InducerColumns.combine

    def noting(branch, out, probabilities, query):
        given.append(probabilities)
        return combine(branch, out, probabilities, query)

    model = adapted("bert", InducerTuningConfig(), scale=0.1)
    monkeypatch.setattr(InducerColumns, "combine", noting)
    seen = observed(model, [alone(documents()[0])])
    assert len(given) == len(seen) == 3
    for one, probabilities in zip(seen, given, strict=True):
        torch.testing.assert_close(one.mass, probabilities[0, :, :, 0].sum(dim=-1), atol=1e-9, rtol=0)


@pytest.mark.parametrize("method", ["prefix-tuning", "prefix-propagation"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_does_not_count(family, method):
    model = adapted(family, CONFIGS[method])
    for padded, single in zip(observed(model, [batch()]), observed(model), strict=True):
        assert padded.queries == single.queries == sum(LENGTHS)
        torch.testing.assert_close(padded.mass, single.mass, atol=1e-9, rtol=0)


def test_lambda_is_the_mass_of_prefix_propagation():
    """Equation 5 of Li et al. 2023: the kernel form weighted by lambda is the softmax over both."""
    kernel = adapted("bert", KernelPropagationConfig(num_virtual_tokens=P, alpha_scope="lambda"))
    plain = adapted("bert", CONFIGS["prefix-propagation"])
    expected = analyse(plain, each())["attention_mass"]
    assert analyse(kernel, each())["attention_mass"] == [pytest.approx(heads, rel=1e-5) for heads in expected]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (KernelPropagationConfig(num_virtual_tokens=P), r"share no softmax.*alpha_scope: lambda"),
        (LoraConfig(target_modules=["query"]), r"no prefix and no columns into the attention.*prefix-tuning"),
    ],
)
def test_methods_without_a_mass_are_refused(config, said):
    with pytest.raises(AdapterError, match=said):
        analyse(get_peft_model(transformer("bert"), config).eval(), each())
