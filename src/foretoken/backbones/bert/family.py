"""Encoders with absolute positions: BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, MiniLM (a BERT), DistilBERT."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from foretoken.backbones.attention_interface import interface_dimensions, is_attached
from foretoken.backbones.base import Attention, Backbone, Stack, alone, offset_after_padding
from foretoken.backbones.bert.packed import BERT_PARTS, DISTILBERT_PARTS, attach_packing, detach_packing
from foretoken.backbones.masks import extend_text_mask

HEADS = ("classifier", "pre_classifier", "sequence_summary", "qa_outputs")

BERT = Backbone(
    model_types=("bert",),
    stacks=(
        Stack(
            layers="encoder.layer",
            attention=Attention("attention.self", ("attention.self.query",), "attention.output.dense"),
            feed_forward=("intermediate", "output.dense"),
            entry=("embeddings_project", "embeddings"),
            end="encoder",
            extend_inputs=extend_text_mask,
            layer_output=alone,
        ),
    ),
    heads=HEADS,
    pooled_heads=("ForSequenceClassification", "ForMultipleChoice"),
    first_token_heads=("ForSequenceClassification", "ForMultipleChoice"),
    projections=("query", "value"),
    dimensions=interface_dimensions,
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
            entry=("embeddings",),
            end="transformer",
            extend_inputs=extend_text_mask,
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
