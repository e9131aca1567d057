"""The linear probe, which trains only the model's new head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.errors import BackboneError
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.sites import IdleEntry, Sites


@dataclass
class HeadOnlyConfig(ForetokenConfig):
    """Train only the head; the backbone stays frozen. The simplest baseline.

    >>> HeadOnlyConfig(task_type="SEQ_CLS").peft_type
    'FORETOKEN_HEAD_ONLY'
    """

    method_type: ClassVar[str] = "FORETOKEN_HEAD_ONLY"
    usual_rate: ClassVar[float | None] = None

    def build(self, dimensions: Dimensions) -> Sites:
        """Return one entry without parameters, as peft needs a module to attach.

        Raises:
            BackboneError: the model has no new head, and the config names nothing else to train.
        """
        if not (dimensions.heads or self.modules_to_save or dimensions.trained_tokens):
            raise BackboneError(
                f"head-only trains the task's new head, and this {dimensions.model_type} model has none; "
                "choose another method, e.g. prefix-propagation, or a model class with a head"
            )
        return Sites(layers={0: IdleEntry()})
