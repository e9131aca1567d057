"""Tiny random models of the four families for the oracles, exact in float64, and a batch for them."""

from functools import cache, partial

import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from support import naive_models, tiny
from support.copies import copies_of

FAMILIES = ("bert", "longformer", "gpt2", "llama")
LENGTHS = (8, 5)  # the documents of a batch; the second one is padded
NUM_LAYERS, WIDTH, NUM_HEADS, HEAD_DIM = 3, 32, 4, 8


def transformer(family, *, exact=True):
    """Return transformers' bare model in float64, the same one at every call; no norm and no bias is neutral.

    ``exact``: without the places where transformers works in float32 even when the model is float64.
    """
    with torch.random.fork_rng():
        model = copies(family)()
    for module in model.modules() if exact else ():
        if isinstance(module, LlamaRMSNorm):
            module.forward = partial(rms_norm, module)
        elif isinstance(module, LlamaRotaryEmbedding):
            module.forward = partial(rotary_embedding, module)
    return model


@cache
def copies(family):
    """Return what makes copies of a family's frozen model."""
    return copies_of(partial(new_transformer, family))


def new_transformer(family):
    """Make the model that `transformer` returns copies of."""
    model = tiny.new_model(family, "FEATURE_EXTRACTION", seed=4, dropout=False).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    return model.requires_grad_(False)


def rms_norm(module, x):
    """LlamaRMSNorm without its turn to float32."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon) * module.weight


def rotary_embedding(module, x, position_ids):
    """LlamaRotaryEmbedding without its turn to float32."""
    exponents = torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM
    angles = position_ids[..., None].double() * module.config.rope_parameters["rope_theta"] ** -exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


@cache
def oracle(family):
    """Return the naive model with the same weights; it holds no state."""
    model = transformer(family)
    return naive_models.MODELS[family](model.config, model.state_dict())


def documents():
    """Return the token ids of each document, without padding."""
    generator = torch.Generator().manual_seed(6)
    return [torch.randint(5, 100, (length,), generator=generator) for length in LENGTHS]


def batch(*, left=False):
    """Return the same documents as a batch, padded on the right, or on the left with positions from 0 on."""
    inputs = {"input_ids": [], "attention_mask": [], "position_ids": []}
    for ids in documents():
        missing = max(LENGTHS) - len(ids)
        padding = (missing, 0) if left else (0, missing)
        ones, positions = torch.ones_like(ids), torch.arange(len(ids))
        for name, row, filler in zip(inputs, (ids, ones, positions), (1, 0, 0), strict=True):
            inputs[name].append(torch.nn.functional.pad(row, padding, value=filler))
    stacked = {name: torch.stack(rows) for name, rows in inputs.items()}
    return stacked if left else {name: stacked[name] for name in ("input_ids", "attention_mask")}
