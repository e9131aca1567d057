"""Encoders with absolute positions: BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, MiniLM (a BERT), DistilBERT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from transformers import PreTrainedConfig

from foretoken.backbones.attention_interface import interface_dimensions, is_attached
from foretoken.backbones.base import Attention, Backbone, Stack, alone, offset_after_padding, refuse_decoder
from foretoken.backbones.bert.packed import BERT_PARTS, DISTILBERT_PARTS, attach_packing, detach_packing

HEADS = ("classifier", "pre_classifier", "sequence_summary", "qa_outputs")


def bert_dimensions(config: PreTrainedConfig) -> Mapping[str, int]:
    """Return the dimensions of a config.

    Raises:
        BackboneError: the model is a decoder, or its attention implementation takes no mask.
    """
    refuse_decoder(config)
    return interface_dimensions(config)


BERT = Backbone(
    model_types=("bert",),
    stacks=(
        Stack(
            layers="encoder.layer",
            attention=Attention("attention.self", ("attention.self.query",), "attention.output.dense"),
            feed_forward=("intermediate", "output.dense"),
            end="encoder",
            layer_output=alone,
        ),
    ),
    heads=HEADS,
    pooled_heads=("ForSequenceClassification", "ForMultipleChoice"),
    first_token_heads=("ForSequenceClassification", "ForMultipleChoice"),
    projections=("query", "value"),
    dimensions=bert_dimensions,
    attach_attention=partial(attach_packing, parts=BERT_PARTS),
    detach_attention=partial(detach_packing, parts=BERT_PARTS),
    is_attached=is_attached,
)

ROBERTA = replace(BERT, model_types=("roberta", "xlm-roberta", "camembert"), position_offset=offset_after_padding)
ELECTRA = replace(BERT, model_types=("electra",))

DISTILBERT = Backbone(
    model_types=("distilbert",),
    stacks=(
        Stack(
            layers="transformer.layer",
            attention=Attention("attention", ("attention.q_lin",), "attention.out_lin"),
            feed_forward=("ffn", "ffn"),
            end="transformer",
            layer_output=alone,
        ),
    ),
    heads=HEADS,
    first_token_heads=("ForSequenceClassification", "ForMultipleChoice"),
    projections=("q_lin", "v_lin"),
    dimensions=interface_dimensions,  # DistilBertConfig answers to the usual names through its attribute map
    attach_attention=partial(attach_packing, parts=DISTILBERT_PARTS),
    detach_attention=partial(detach_packing, parts=DISTILBERT_PARTS),
    is_attached=is_attached,
)
