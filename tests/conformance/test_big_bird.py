"""BigBird: block-sparse and full attention with an adapter, and the model as transformers has it."""

import copy

import numpy as np
import pytest
import torch
from peft import get_peft_model
from transformers import BigBirdConfig, BigBirdModel

from foretoken import AoTPTuningConfig, PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig
from foretoken.attention import attend_call
from foretoken.attention.attend import use_packing
from foretoken.backbones.base import ADAPTER, PassFacts
from foretoken.backbones.big_bird import attach_blocked
from foretoken.errors import BackboneError

from support import tiny
from support.table import adapted

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LONG, SHORT = 20, 14  # sparse from 15 tokens on: (5 + 2 * 1) * 2 are too few


def body(length=64, *, size=2, drawn=1, **changes):
    """Return the bare model, with the same random weights for the same configuration."""
    torch.manual_seed(2)
    options = tiny.SIZES | NO_DROPOUT | {"max_position_embeddings": length} | changes
    return BigBirdModel(BigBirdConfig(**options, block_size=size, num_random_blocks=drawn)).eval()


def documents(length, *, size=2):
    return torch.randint(5, 100, (size, length), generator=torch.Generator().manual_seed(length))


def states(model, ids, mask=None, **options):
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, **options).last_hidden_state


class Plain:
    """A branch that adds nothing, so that attention runs through foretoken's own engines."""

    facts = PassFacts(has_part=True)

    def attend(self, call):
        return attend_call(call)[0], None

    def deliver(self, vector):
        assert vector is None


MASKS = {
    "all": lambda ids: None,
    "padded": lambda ids: torch.ones_like(ids).index_put((torch.tensor([1]),), keep(ids, lambda i, n: i < n * 2 // 3)),
    "padded left": lambda ids: torch.ones_like(ids).index_put((torch.tensor([1]),), keep(ids, lambda i, n: i > n // 2)),
    "holes": lambda ids: keep(ids, lambda i, n: i not in (0, 3, 4, 5, n - 1)).expand_as(ids).contiguous(),
}


def keep(ids, rule):
    return torch.tensor([int(rule(i, ids.shape[1])) for i in range(ids.shape[1])])


class TestTheModelWithoutColumnsAndRows:
    """Outputs and gradients of transformers' own model, padding excepted."""

    @staticmethod
    def assert_equal(model, ids, mask, *, training):
        theirs, ours = model.train(training), copy.deepcopy(model)
        attach_blocked(ours, [])
        for layer in ours.encoder.layer:
            ADAPTER.set(layer.attention.self, Plain())
        results = []
        for m in (theirs, ours):
            out = m(ids, attention_mask=mask).last_hidden_state
            out = out if mask is None else out * mask[..., None]
            (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
            results.append((out.detach(), {n: p.grad for n, p in m.named_parameters() if p.grad is not None}))
        (expected, gradients), (got, own_gradients) = results
        assert theirs.attention_type == ours.attention_type
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
        assert gradients.keys() == own_gradients.keys()
        largest = max(g.abs().max() for g in gradients.values())
        for name, gradient in gradients.items():
            torch.testing.assert_close(own_gradients[name], gradient, atol=1e-5 * float(largest), rtol=0)

    @pytest.mark.covering
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("mask", MASKS)
    @pytest.mark.parametrize(
        ("size", "drawn", "length"), [(2, 1, 14), (2, 1, 15), (2, 1, 20), (2, 3, 33), (4, 1, 31), (4, 2, 64)]
    )
    def test_every_kind_of_length(self, size, drawn, length, mask, training):
        """Too short for sparse attention, just long enough, in part a block, and as long as can be."""
        ids = documents(length)
        model = body(size=size, drawn=drawn)
        self.assert_equal(model, ids, MASKS[mask](ids), training=training)
        assert (model.attention_type == "block_sparse") == (length > (5 + 2 * drawn) * size)

    @pytest.mark.parametrize("training", [False, True])
    def test_a_length_of_the_paper(self, training):
        model = body(4096, size=64, drawn=3, num_hidden_layers=1)
        self.assert_equal(model, documents(1024, size=1), None, training=training)


class TestTheTypeOfAttention:
    """Each batch is computed as by a model that saw no other before."""

    @pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning", "stack"])
    @pytest.mark.parametrize("lengths", [(LONG, SHORT, LONG), (SHORT, LONG, SHORT)])
    def test_it_follows_the_length_of_every_batch(self, method, lengths):
        model = tiny.shaken(adapted(body(), method))
        parameters = dict(model.named_parameters())
        for length in lengths:
            fresh = tiny.shaken(adapted(body(), method))
            assert torch.equal(states(model, documents(length)), states(fresh, documents(length)))
            with model.disable_adapter():
                torch.testing.assert_close(states(model, documents(length)), states(body(), documents(length)))
        assert all(parameter is parameters[name] for name, parameter in model.named_parameters())

    def test_the_users_choice_holds(self):
        """``set_attention_type`` chooses for all lengths, and takes nothing from the adapter."""
        config = {"attention_type": "original_full"}
        sparse, full = (tiny.shaken(adapted(body(**c), "stack")) for c in ({}, config))
        ids = documents(LONG)
        expected = {"block_sparse": states(sparse, ids), "original_full": states(full, ids)}
        assert (expected["block_sparse"] - expected["original_full"]).abs().max() > 1e-2
        for kind in ("original_full", "block_sparse", "original_full"):
            sparse.get_base_model().set_attention_type(kind)
            states(sparse, documents(SHORT))
            assert torch.equal(states(sparse, ids), expected[kind])

    def test_a_model_that_went_over_to_full_attention_comes_back(self):
        plain = body()
        states(plain, documents(SHORT))
        assert plain.attention_type == "original_full"
        expected = states(tiny.shaken(adapted(body(), "prefix-tuning")), documents(LONG))
        model = tiny.shaken(adapted(plain, "prefix-tuning"))
        assert torch.equal(states(model, documents(LONG)), expected)

    @pytest.mark.parametrize("last", [LONG, SHORT])
    def test_unloading_restores_classes_and_attributes(self, last):
        plain = body()
        before = [(type(m), sorted(vars(m)), sorted(m._modules)) for m in plain.modules()]
        model = adapted(plain, "stack")
        for length in (SHORT, LONG, last):
            states(model, documents(length))
        unloaded = model.unload()
        unloaded.__dict__.pop("peft_config", None)
        assert [(type(m), sorted(vars(m)), sorted(m._modules)) for m in unloaded.modules()] == before
        assert torch.equal(states(unloaded, documents(LONG)), states(body(), documents(LONG)))


def test_random_blocks_leave_numpys_generator_alone():
    model = tiny.shaken(adapted(body(), "prefix-tuning")).train()
    np.random.seed(5)
    expected = np.random.rand(4)
    np.random.seed(5)
    states(model, documents(LONG))
    assert (np.random.rand(4) == expected).all()


def test_only_full_attention_drops_weights_in_training():
    """As in transformers, whose sparse attention has no dropout."""
    same = {}
    for length in (LONG, SHORT):
        model = tiny.shaken(adapted(body(attention_probs_dropout_prob=0.5), "prefix-propagation")).train()
        same[length] = torch.equal(states(model, documents(length)), states(model, documents(length)))
    assert same == {LONG: True, SHORT: False}


CONFIGS = {
    "row": PrefixPropagationConfig(num_virtual_tokens=2, prefix_dropout=0.0),
    "embedding": PromptTuningConfig(num_virtual_tokens=2, prefix_dropout=0.0),
    "column": PrefixTuningConfig(num_virtual_tokens=2, prefix_dropout=0.0),
}


def test_every_row_sees_every_token():
    use_packing(False)  # packed, the layers' states are those of all documents in one run
    model = tiny.shaken(get_peft_model(body(), CONFIGS["row"]).eval())
    seen = {}
    inner = model.get_base_model()
    inner.embeddings.register_forward_hook(lambda _, args, x: seen.update(text=x.requires_grad_()))
    inner.encoder.layer[0].register_forward_hook(lambda _, args, x: seen.update(rows=x[:, :2]))
    mask = MASKS["padded"](documents(36))
    model(documents(36), mask)
    for row in (0, 1):
        (gradient,) = torch.autograd.grad(seen["rows"][:, row].square().sum(), seen["text"], retain_graph=True)
        assert torch.equal(gradient.abs().amax(-1) > 0, mask.bool())


class TestPaddingToWholeBlocks:
    """A text that is not of whole blocks is padded on the way."""

    @pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning", "aot-p-tuning, fc", "stack"])
    def test_it_is_as_if_the_user_had_padded(self, method):
        model = tiny.shaken(adapted(body(size=4), method))
        ids = documents(41)
        padded, mask = torch.nn.functional.pad(ids, (0, 3)), torch.ones(2, 44).index_fill(1, torch.arange(41, 44), 0)
        with torch.no_grad():
            out = model(input_ids=ids, output_hidden_states=True)
            expected = model(input_ids=padded, attention_mask=mask, output_hidden_states=True)
        assert out.last_hidden_state.shape == (2, 41, 32)
        for got, wanted in zip(out.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(got[:, :41], wanted[:, :41])

    def test_checkpointing_knows_the_padded_tokens(self):
        model = tiny.shaken(get_peft_model(body(size=4), AoTPTuningConfig(rank=4))).train()
        expected = states(model, documents(41))
        model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.testing.assert_close(model(documents(41)).last_hidden_state, expected)


def test_a_decoder_is_refused():
    with pytest.raises(BackboneError, match="is_decoder=True"):
        adapted(body(is_decoder=True, attention_type="original_full"), "prefix-tuning")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning"])
def test_it_compiles_without_a_graph_break(method):
    model = tiny.shaken(adapted(body(), method))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    ids = documents(LONG)
    torch.testing.assert_close(states(compiled, ids), states(model, ids), atol=2e-5, rtol=2e-5)
