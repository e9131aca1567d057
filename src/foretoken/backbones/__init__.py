"""The one table of backbone families, by ``config.model_type``."""

from __future__ import annotations

from torch import nn

from foretoken.backbones.base import Backbone
from foretoken.backbones.bert.family import BERT, DISTILBERT
from foretoken.backbones.big_bird import BIG_BIRD
from foretoken.backbones.deberta import DEBERTA
from foretoken.backbones.decoders import GPT2, LLAMA
from foretoken.backbones.led import LED
from foretoken.backbones.longformer.attention import LONGFORMER
from foretoken.backbones.modernbert import MODERNBERT
from foretoken.backbones.mpnet import MPNET
from foretoken.backbones.seq2seq import BART, T5
from foretoken.errors import BackboneError, did_you_mean

BACKBONES: dict[str, Backbone] = {
    model_type: backbone
    for backbone in (BERT, DISTILBERT, LONGFORMER, BIG_BIRD, MODERNBERT, DEBERTA, MPNET, GPT2, LLAMA, T5, BART, LED)
    for model_type in backbone.model_types
}


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
