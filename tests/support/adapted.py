"""A model that foretoken adapted against the naive model, for a padded batch: outputs and gradients."""

import re
from functools import cache

import torch
from peft import get_peft_model

from support.families import LENGTHS, batch, documents, oracle, transformer

GLOBAL_TOKENS = ((0, 5), ())  # of a Longformer's documents: one has some beside the rows in front, the other none
NAME = re.compile(r"\.(?:layer|layers|h)\.(\d+)\.(?:(.*)\.)?foretoken\.default\.(.*)$")
ROLES = {
    None: "layer",
    "attention.self": "attention",
    "attn": "attention",
    "self_attn": "attention",
    "attention.self.query": "query",
    "attention.self.query_global": "query_global",
    "attn.c_attn": "query",
    "self_attn.q_proj": "query",
    "attention.output.dense": "output",
    "attn.c_proj": "output",
    "self_attn.o_proj": "output",
    "intermediate": "feed_forward",
    "mlp": "feed_forward",
}


def adapted(family, config, *, scale=0.3):
    """Return the float64 model with an adapter whose parameters are all random."""
    model = get_peft_model(transformer(family), config).double().eval()
    with torch.no_grad():
        for parameter in trained(model).values():
            parameter.normal_(0.0, scale, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


def trained(model):
    """Return the adapter's parameters by (layer, role, name): they are trained, and nothing else is."""
    found = {}
    for path, parameter in model.named_parameters():
        match = NAME.search(path)
        assert parameter.requires_grad == (match is not None), path
        if match is not None:
            layer, place, name = match.groups()
            found[int(layer), ROLES[place], name] = parameter
    return found


def by_place(leaves):
    """{(layer, role, name): tensor} -> {(layer, role): {name: tensor}}."""
    places = {}
    for (layer, role, name), tensor in leaves.items():
        places.setdefault((layer, role), {})[name] = tensor
    return places


def run(model, family, *, left=False, positions=True):
    """Return the last hidden states of each document in the padded batch, (N, D)."""
    inputs = batch(left=left)
    if not positions:
        del inputs["position_ids"]
    if family == "longformer":
        inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
        for document, tokens in zip(inputs["global_attention_mask"], GLOBAL_TOKENS, strict=True):
            document[list(tokens)] = 1
    states = model(**inputs).last_hidden_state
    return [x[-length:] if left else x[:length] for x, length in zip(states, LENGTHS, strict=True)]


def by_hand(family, edits_of, leaves):
    """Return the naive model's last hidden states of each document, without padding."""
    edits = [edits_of(by_place(leaves), ids) for ids in documents()]
    return [
        oracle(family)(ids, edit, global_tokens=tokens)
        for ids, edit, tokens in zip(documents(), edits, global_tokens(family), strict=True)
    ]


@cache
def frozen(family):
    """Return what the naive model yields without an adapter."""
    both = zip(documents(), global_tokens(family), strict=True)
    return [oracle(family)(ids, global_tokens=tokens) for ids, tokens in both]


def global_tokens(family):
    return GLOBAL_TOKENS if family == "longformer" else ((), ())


def assert_equals_oracle(family, config, edits_of, *, tolerance=1e-9, **padding):
    """Compare outputs, and the gradients of a fixed random projection of them by every parameter of the adapter.

    ``edits_of(parameters by place, token ids of a document)`` returns the naive Edits; ``padding``: as for ``run``.
    """
    model = adapted(family, config)
    parameters = trained(model)
    leaves = {key: parameter.detach().clone().requires_grad_() for key, parameter in parameters.items()}
    states, expected = run(model, family, **padding), by_hand(family, edits_of, leaves)
    generator = torch.Generator().manual_seed(8)
    loss, expected_loss = 0.0, 0.0
    for ours, naive in zip(states, expected, strict=True):
        torch.testing.assert_close(ours, naive, atol=tolerance, rtol=0)
        direction = torch.randn(naive.shape, dtype=torch.float64, generator=generator)
        loss = loss + (ours * direction).sum()
        expected_loss = expected_loss + (naive * direction).sum()
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    expected_gradients = torch.autograd.grad(expected_loss, list(leaves.values()))
    for key, got, wanted in zip(parameters, gradients, expected_gradients, strict=True):
        assert wanted.abs().max() > 1e-6, f"{key} has no effect: the comparison says nothing"
        torch.testing.assert_close(
            got, wanted, atol=10 * tolerance, rtol=1e-9, msg=lambda text, key=key: f"{key}: {text}"
        )
    for naive, before in zip(expected, frozen(family), strict=True):
        change = (naive - before).abs().amax(-1)
        assert change.min() > 1e-3, "the adapter changes too little for the comparison to say anything"
