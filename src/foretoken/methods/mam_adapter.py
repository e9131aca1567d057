"""MAM, mix-and-match adapter (He et al. 2022): prefix-tuning and a parallel adapter at the feed-forward block."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from peft import PeftConfig

from foretoken.methods.bottleneck_adapter import PARALLEL_SCALE, Activation, BottleneckAdapterConfig
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.prefixes.prefix import PrefixConfig
from foretoken.methods.prefixes.prefix_tuning import PrefixTuningConfig
from foretoken.methods.require import require_positive
from foretoken.methods.sites import Sites


@dataclass
class MAMAdapterConfig(PrefixConfig):
    """MAM adapter: prefix-tuning with a short prefix, and a parallel scaled adapter with a wide bottleneck.

    He et al. 2022. In every attention the trained keys and values of prefix-tuning (their eq. 7); at every
    feed-forward block ``y + s (act(x W_down + b_down) W_up + b_up)``, x its input and y its output. The defaults of
    length, bottleneck and scale are theirs for XSum and en-ro (P = 30, R = 512, s = 4); the script
    they released for RoBERTa-base on GLUE has P = 16, R = 16, s = 2.

    Args:
        bottleneck_size: R, the width of the adapter's bottleneck.
        activation: act.
        scale: s.
        adapter_dropout: probability of dropping an element of the bottleneck in training.

    Raises:
        ConfigError: a value that cannot work, e.g. ``bottleneck_size`` below 1.

    >>> MAMAdapterConfig(num_virtual_tokens=16, bottleneck_size=16, scale=2.0).peft_type
    'FORETOKEN_MAM_ADAPTER'
    """

    num_virtual_tokens: int = field(default=30, metadata={"help": "length of the prefix"})
    bottleneck_size: int = field(default=512, metadata={"help": "width of the adapter's bottleneck"})
    activation: Activation = field(default="relu", metadata={"help": "what follows the down-projection"})
    scale: float = field(default=PARALLEL_SCALE, metadata={"help": "factor on the adapter's output"})
    adapter_dropout: float = field(default=0.0, metadata={"help": "dropout in the bottleneck in training"})

    method_type: ClassVar[str] = "FORETOKEN_MAM_ADAPTER"
    usual_rate: ClassVar[float | None] = 3e-3

    def validate(self) -> None:
        """Raise ConfigError for values that cannot work."""
        super().validate()
        require_positive("scale", self.scale)
        self.adapter()

    def build(self, dimensions: Dimensions) -> Sites:
        """Return prefix-tuning's sites and the adapters'."""
        # reference.mam_adapter: prefix-tuning, and a parallel bottleneck adapter
        sites = self.prefix().build(dimensions)
        return replace(sites, outputs={**sites.outputs, **self.adapter().build(dimensions).outputs})

    def prefix(self) -> PrefixTuningConfig:
        """Return the part in attention."""
        shared = {item.name for item in fields(PrefixConfig)} - {item.name for item in fields(PeftConfig)}
        return PrefixTuningConfig(**{name: getattr(self, name) for name in shared})

    def adapter(self) -> BottleneckAdapterConfig:
        """Return the part at the feed-forward blocks."""
        return BottleneckAdapterConfig(
            variant="parallel",
            bottleneck_size=self.bottleneck_size,
            activation=self.activation,
            scale=self.scale,
            adapter_dropout=self.adapter_dropout,
        )
