"""Tiny random models of the four families for the oracles, exact in float64, and a batch for them."""

from functools import cache, partial

import torch
import transformers as tf
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from support import naive_models
from support.copies import copies_of

COMMON = {"vocab_size": 60, "initializer_range": 0.25, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
ENCODER = COMMON | {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 24,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIGS = {
    "bert": lambda: tf.BertConfig(**ENCODER, **NO_DROPOUT),
    "longformer": lambda: tf.LongformerConfig(**ENCODER, **NO_DROPOUT, attention_window=[4, 8, 4]),
    "gpt2": lambda: tf.GPT2Config(
        **COMMON, n_embd=32, n_layer=3, n_head=4, n_inner=40, n_positions=24, embd_pdrop=0, resid_pdrop=0, attn_pdrop=0
    ),
    "llama": lambda: tf.LlamaConfig(**ENCODER, num_key_value_heads=2),
}
FAMILIES = tuple(CONFIGS)
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
    torch.manual_seed(4)
    model = tf.AutoModel.from_config(CONFIGS[family]()).double().eval()
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
    return [torch.randint(5, 60, (length,), generator=generator) for length in LENGTHS]


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
