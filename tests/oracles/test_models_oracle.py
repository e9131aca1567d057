"""The naive models against transformers' own, unadapted: the ground that the methods' oracles stand on."""

import pytest
import torch

from support import naive_edits
from support.families import FAMILIES, LENGTHS, WIDTH, batch, documents, oracle, transformer

P = 3


@pytest.fixture
def float64_softmax(monkeypatch):
    """Longformer, and eager attention, take the softmax in float32 whatever the model's type is."""
    softmax = torch.nn.functional.softmax

    def as_given(scores, dim=None, dtype=None, **kwargs):
        return softmax(scores, dim=dim, dtype=scores.dtype if scores.dtype == torch.float64 else dtype, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "softmax", as_given)


def assert_equal(family, model, tolerance, **inputs):
    global_tokens = tuple(inputs.get("global_attention_mask", torch.zeros(1, 1))[0].nonzero().flatten().tolist())
    states = model(**batch(), **inputs).last_hidden_state
    for b, ids in enumerate(documents()):
        by_hand = oracle(family)(ids, global_tokens=global_tokens)
        torch.testing.assert_close(states[b, : LENGTHS[b]].double(), by_hand, atol=tolerance, rtol=0)


@pytest.mark.usefixtures("float64_softmax")
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_naive_model_equals_transformers(family, implementation):
    model = transformer(family)
    if family != "longformer":  # it has one implementation of its own
        model.set_attn_implementation(implementation)
    assert_equal(family, model, 1e-9)


@pytest.mark.usefixtures("float64_softmax")
@pytest.mark.parametrize("tokens", [[0], [0, 5]])
def test_naive_longformer_has_global_tokens(tokens):
    mask = torch.zeros(2, max(LENGTHS), dtype=torch.long)
    mask[:, tokens] = 1
    assert_equal("longformer", transformer("longformer"), 1e-9, global_attention_mask=mask)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_as_it_is_installed_agrees_in_float32(family):
    """What was made exact for float64 changes nothing but the rounding."""
    assert_equal(family, transformer(family, exact=False).float(), 5e-4)


def bert_states(model, rows, ids):
    """Give rows to the encoder beside the embeddings of the text."""
    return model.encoder(torch.cat([rows, model.embeddings(ids[None])[0]])[None]).last_hidden_state[0]


def longformer_states(model, rows, ids):
    """Give rows to the encoder as global tokens: its masks are 0 for a token, above 0 for a global, below for none."""
    x = torch.cat([rows, model.embeddings(ids[None])[0]])
    missing = -len(x) % max(model.config.attention_window)
    mask = torch.tensor([10_000] * len(rows) + [0] * len(ids) + [-10_000] * missing)[None].double()
    x = torch.nn.functional.pad(x, (0, 0, 0, missing))[None]
    return model.encoder(x, attention_mask=mask).last_hidden_state[0][: len(rows) + len(ids)]


def decoder_states(model, rows, ids):
    """Give rows as embeddings at position 0; GPT-2 adds a position's embedding, which is taken off the rows before."""
    if model.config.model_type == "gpt2":
        rows = rows - model.wpe.weight[0]
    x = torch.cat([rows, model.get_input_embeddings()(ids)])[None]
    positions = torch.tensor([[0] * len(rows) + list(range(len(ids)))])
    return model(inputs_embeds=x, position_ids=positions, attention_mask=torch.ones_like(positions)).last_hidden_state[
        0
    ]


STATES = {"bert": bert_states, "longformer": longformer_states, "gpt2": decoder_states, "llama": decoder_states}


@pytest.mark.usefixtures("float64_softmax")
@pytest.mark.parametrize("family", FAMILIES)
def test_naive_rows_are_rows_of_transformers(family):
    """Rows in front, and what is added to rows and text before the layers: transformers fed by hand with the same."""
    model, (ids, _) = transformer(family), documents()
    rows, text = torch.randn(3, P, WIDTH).double(), torch.randn(3, len(ids), WIDTH).double()
    layers = next(module for name, module in model.named_modules() if name in ("encoder.layer", "h", "layers"))
    for index, layer in enumerate(layers):
        added = torch.cat([rows[index] if index else 0 * rows[0], text[index]])

        def before(module, args, added=added):
            missing = args[0].shape[1] - len(added)
            return (args[0] + torch.nn.functional.pad(added, (0, 0, 0, missing)), *args[1:])

        layer.register_forward_pre_hook(before)
    edits = naive_edits.prefix_propagation(rows)
    edits.on_text = naive_edits.layers(lambda layer: lambda x: x + text[layer])
    expected = STATES[family](model, rows[0], ids)[P:]
    torch.testing.assert_close(oracle(family)(ids, edits), expected, atol=1e-9, rtol=0)
    assert (expected - oracle(family)(ids)).abs().amax(-1).min() > 1e-2
