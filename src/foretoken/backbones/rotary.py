"""Encoders with rotary positions: ModernBERT (global and local layers), EuroBERT, NomicBERT, Jina embeddings v3.

The prefix enters right before the first layer: windows and positions are those of only the text. The bodies run their
layers themselves. The layers are of our classes: the first one packs its input, outside of gradient checkpointing and
before the prefix enters, and the last one unpacks its output. Linear maps and norms run without padding, attention with
padding, as in BERT.

Shapes: B batch, N text tokens, P prefix length, K head width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.backbones.attention_interface import (
    attach_interface,
    detach_interface,
    interface_dimensions,
    is_attached,
)
from foretoken.backbones.base import Attention, Backbone, Stack, alone
from foretoken.backbones.module_value import Keywords
from foretoken.backbones.packing import RotaryPacks, let_layers_pack, stop_layers_packing


def extend_rotary(kwargs: Keywords, prefix_mask: Tensor) -> Keywords:
    """Prepend the rotation of the prefix, at position 0 with sine 0, to the (1 or B, N, K) of the text.

    The largest cosine is that of position 0: 1, or the factor of rotary positions that also scale (YaRN).
    """
    cosine, sine = kwargs["position_embeddings"]
    length = prefix_mask.shape[1]
    front = (0, 0, length, 0)
    unrotated = cosine.amax(dim=(0, 1, 2)).expand(cosine.shape[0], length, cosine.shape[2])
    return {**kwargs, "position_embeddings": (torch.cat([unrotated, cosine], dim=1), F.pad(sine, front))}


def attach_rotary(body: nn.Module, attentions: list[nn.Module], attention: str) -> None:
    """Let attention, at this path in a layer, ask its adapter, and the layers pack their batches."""
    attach_interface(body, attentions)
    let_layers_pack(RotaryPacks(body, list(body.get_submodule("layers").children()), attention))


def detach_rotary(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Undo :func:`attach_rotary`."""
    detach_interface(body, attentions)
    stop_layers_packing(body)


def read_one_state(model: Any) -> None:
    """Let EuroBERT's classification hand its head the state that the body has pooled."""
    model.classifier_pooling, model.activation = "bos", nn.Identity()


MODERNBERT = Backbone(
    model_types=("modernbert",),
    stacks=(
        Stack(
            layers="layers",
            attention=Attention("attn", ("attn.Wqkv",), "attn.Wo", is_rotary=True),
            feed_forward=("mlp", "mlp"),
            takes_positions=True,
            extend_layer=extend_rotary,
            layer_output=alone,
        ),
    ),
    heads=("head", "classifier"),
    pretrained_heads=("ForMaskedLM",),
    projections=("Wqkv",),
    dimensions=interface_dimensions,
    attach_attention=partial(attach_rotary, attention="attn"),
    detach_attention=detach_rotary,
    is_attached=is_attached,
    packs_padded_batches=True,
)

EUROBERT = replace(
    MODERNBERT,
    model_types=("eurobert",),
    stacks=(
        replace(
            MODERNBERT.stacks[0],
            attention=Attention("self_attn", ("self_attn.q_proj",), "self_attn.o_proj", is_rotary=True),
        ),
    ),
    heads=("dense", "classifier"),
    projections=("q_proj", "v_proj"),
    read_one_state=read_one_state,
    attach_attention=partial(attach_rotary, attention="self_attn"),
)

NOMIC_BERT = replace(
    EUROBERT,
    model_types=("nomic_bert",),
    heads=("classifier",),
    pooled_heads=("ForSequenceClassification",),
    read_one_state=None,
)

JINA_EMBEDDINGS_V3 = replace(
    NOMIC_BERT, model_types=("jina_embeddings_v3",), heads=("classifier", "qa_outputs"), pooled_heads=()
)
