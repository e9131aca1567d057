"""Encoders with absolute positions: BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, MiniLM (a BERT), DistilBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretoken.backbones.base import Backbone, extend_text_mask
from foretoken.backbones.interface import attach_interface, detach_interface

HEADS = ("classifier", "pre_classifier", "sequence_summary", "qa_outputs")


def bert_dimensions(config: Any) -> Mapping[str, int]:
    """Read a BERT-like config."""
    return {
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_attention_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
        "vocab_size": config.vocab_size,
    }


BERT = Backbone(
    model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    layers="encoder.layer",
    attention="attention.self",
    entry=("embeddings_project", "embeddings"),
    stack="encoder",
    heads=HEADS,
    pooled_heads=("ForSequenceClassification", "ForMultipleChoice"),
    projections=("query", "value"),
    dimensions=bert_dimensions,
    extend_inputs=extend_text_mask,
    attach_attention=attach_interface,
    detach_attention=detach_interface,
)

DISTILBERT = Backbone(
    model_types=("distilbert",),
    layers="transformer.layer",
    attention="attention",
    entry=("embeddings",),
    stack="transformer",
    heads=HEADS,
    pooled_heads=(),
    projections=("q_lin", "v_lin"),
    dimensions=bert_dimensions,  # DistilBertConfig answers to the usual names through its attribute map
    extend_inputs=extend_text_mask,
    attach_attention=attach_interface,
    detach_attention=detach_interface,
)
