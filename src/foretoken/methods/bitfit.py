"""BitFit (Ben Zaken et al. 2022): only the biases are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.errors import BackboneError
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.sites import OutputShift, Sites


@dataclass
class BitFitConfig(ForetokenConfig):
    """BitFit: every bias of the body, linear maps and norms, is trained.

    The adapter holds the difference to the frozen bias, ``(W x + b) + d`` with d = 0 at the start: the model and the
    gradients are those of training b, but several adapters can be attached, disabled and deleted.

    >>> BitFitConfig().peft_type
    'FORETOKEN_BITFIT'
    """

    method_type: ClassVar[str] = "FORETOKEN_BITFIT"
    usual_rate: ClassVar[float | None] = 3e-3

    def build(self, dimensions: Dimensions) -> Sites:
        """Return one shift per bias.

        Raises:
            BackboneError: the backbone has no biases.
        """
        if not dimensions.biases:
            raise BackboneError(
                f"bitfit trains biases, and this {dimensions.model_type} model has none; "
                "choose another method, e.g. prefix-propagation"
            )
        return Sites(outputs={path: OutputShift(size) for path, size in dimensions.biases.items()})
