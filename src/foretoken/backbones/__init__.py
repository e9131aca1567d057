"""The one table of backbone families, by ``config.model_type``."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedConfig

from foretoken.backbones.base import Backbone, offset_after_padding
from foretoken.backbones.bert import BERT, DISTILBERT, ELECTRA, ROBERTA
from foretoken.backbones.big_bird import BIG_BIRD
from foretoken.backbones.deberta import DEBERTA
from foretoken.backbones.decoders import GPT2, LLAMA
from foretoken.backbones.led import LED
from foretoken.backbones.longformer.family import LONGFORMER
from foretoken.backbones.mpnet import MPNET
from foretoken.backbones.rotary import EUROBERT, JINA_EMBEDDINGS_V3, MODERNBERT, NOMIC_BERT
from foretoken.backbones.seq2seq import BART, T5
from foretoken.errors import BackboneError, did_you_mean

ENCODERS = (
    *(BERT, ROBERTA, ELECTRA, DISTILBERT, LONGFORMER, BIG_BIRD),
    *(MODERNBERT, EUROBERT, NOMIC_BERT, JINA_EMBEDDINGS_V3, DEBERTA, MPNET),
)
BACKBONES: dict[str, Backbone] = {
    model_type: backbone for backbone in (*ENCODERS, GPT2, LLAMA, T5, BART, LED) for model_type in backbone.model_types
}
# families that cannot carry an adapter yet, but can be fully trained
WITHOUT_DECLARATION = {"xlm-roberta-xl": offset_after_padding, "data2vec-text": offset_after_padding}


def position_offset(config: PreTrainedConfig) -> int:
    """Return the number of positions in a model's table before that of the first token."""
    backbone = BACKBONES.get(config.model_type)
    offset = WITHOUT_DECLARATION.get(config.model_type) if backbone is None else backbone.position_offset
    return 0 if offset is None else offset(config)


def find_backbone(model: nn.Module) -> Backbone:
    """Return the declaration of the model's family.

    Raises:
        BackboneError: the family is not supported; the message lists those that are.
    """
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if model_type not in BACKBONES:
        hint = did_you_mean(str(model_type), BACKBONES)
        raise BackboneError(
            f"a {type(model).__name__} (model_type {model_type!r}) cannot carry an adapter yet{hint}; "
            f"supported families: {', '.join(BACKBONES)}"
        )
    return BACKBONES[model_type]
