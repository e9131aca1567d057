"""A family that the package does not know, added from outside with one line in the table and nothing patched."""

from dataclasses import replace

import pytest
import torch
from peft import get_peft_model
from transformers import DynamicCache, ErnieConfig, ErnieForSequenceClassification, Starcoder2Config, Starcoder2Model

from foretoken import PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig
from foretoken.backbones import BACKBONES
from foretoken.backbones.bert import BERT
from foretoken.backbones.decoders import LLAMA
from foretoken.errors import BackboneError

from support import tiny

P = 3


class ToyConfig(Starcoder2Config):
    """A decoder with norms, biases and a feed-forward block that no family in the table has."""

    model_type = "toy"


class ToyEncoderConfig(ErnieConfig):
    """BERT under another name: the same layers in classes of its own."""

    model_type = "toy-encoder"


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(BACKBONES, "toy", replace(LLAMA, model_types=("toy",)))
    return ToyConfig(**tiny.DECODER, residual_dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def toy_encoder(monkeypatch):
    monkeypatch.setitem(BACKBONES, "toy-encoder", replace(BERT, model_types=("toy-encoder",)))
    return ToyEncoderConfig(
        **tiny.SIZES, num_labels=tiny.LABELS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


def seeded(make, config):
    torch.manual_seed(1)
    return make(config).double().eval()


def tuned(model, config):
    """Return the model with random values in its adapter, and these by name."""
    model = tiny.shaken(get_peft_model(model, config)).eval()
    return model, {name: p for name, p in model.named_parameters() if p.requires_grad}


def assert_same(got, expected, parameters):
    """Compare states, and the gradients of a random projection of them by the parameters."""
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)
    direction = torch.randn(got.shape, dtype=got.dtype, generator=torch.Generator().manual_seed(4))
    ours, theirs = (
        torch.autograd.grad((x * direction).sum(), list(parameters), retain_graph=True) for x in (got, expected)
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 1e-6
        torch.testing.assert_close(mine, other, atol=1e-9, rtol=0)


def test_prompt_tuning_is_embeddings_before_the_text(toy):
    """The prompt at position 0 in transformers' own model, before the embeddings of the text."""
    ids, plain = torch.arange(20).view(2, 10) + 5, seeded(Starcoder2Model, toy)
    model, parameters = tuned(seeded(Starcoder2Model, toy), PromptTuningConfig(num_virtual_tokens=P))
    (prompt,) = parameters.values()
    embeddings = torch.cat([prompt.double().expand(2, -1, -1), plain.get_input_embeddings()(ids)], dim=1)
    positions = torch.tensor([[0] * P + list(range(10))]).expand(2, -1)
    seen = torch.ones_like(positions)
    expected = plain(inputs_embeds=embeddings, position_ids=positions, attention_mask=seen).last_hidden_state
    assert_same(model(input_ids=ids).last_hidden_state, expected[:, P:], parameters.values())


def test_prefix_tuning_is_a_cache_before_the_text(toy):
    """Keys and values in a cache of transformers' own, and the text's positions as they are without one."""
    ids, plain = torch.arange(20).view(2, 10) + 5, seeded(Starcoder2Model, toy)
    model, parameters = tuned(seeded(Starcoder2Model, toy), PrefixTuningConfig(num_virtual_tokens=P))
    cache = DynamicCache(config=toy)
    for layer, prefix in enumerate(parameters.values()):
        key, value = (
            x.unflatten(-1, (2, 8)).transpose(0, 1).expand(2, -1, -1, -1) for x in prefix.double().chunk(2, -1)
        )
        cache.update(key, value, layer)
    positions, seen = torch.arange(10).expand(2, -1), torch.ones(2, P + 10, dtype=torch.long)
    expected = plain(ids, position_ids=positions, attention_mask=seen, past_key_values=cache).last_hidden_state
    assert_same(model(input_ids=ids).last_hidden_state, expected, parameters.values())


@pytest.mark.parametrize("make", [PrefixPropagationConfig, PrefixTuningConfig])
def test_an_encoder_like_bert_computes_what_bert_does(toy_encoder, make):
    inputs = tiny.batch("bert")
    theirs = tiny.model("bert").double()
    ours = ErnieForSequenceClassification(toy_encoder).double()
    ours.load_state_dict({name.replace("bert.", "ernie."): x for name, x in theirs.state_dict().items()})
    known, expected = tuned(theirs, make(task_type="SEQ_CLS", num_virtual_tokens=P))
    model, parameters = tuned(ours, make(task_type="SEQ_CLS", num_virtual_tokens=P))
    found, by_bert = model(**inputs), known(**inputs)
    torch.testing.assert_close(found.logits, by_bert.logits, atol=1e-10, rtol=0)
    for output in (found, by_bert):
        output.loss.backward()
    for parameter, known_parameter in zip(parameters.values(), expected.values(), strict=True):
        torch.testing.assert_close(parameter.grad, known_parameter.grad, atol=1e-10, rtol=0)
        assert parameter.grad.abs().max() > 1e-9


def test_without_its_line_a_family_is_refused():
    config = ToyConfig(**tiny.DECODER)
    with pytest.raises(BackboneError, match=r"model_type 'toy'.*supported families: bert, roberta"):
        get_peft_model(Starcoder2Model(config), PrefixTuningConfig(num_virtual_tokens=P))
