"""Where methods meet backbones, and the only place that touches peft's internals. Importing it registers them."""

from foretoken.tuner.registration import register
from foretoken.tuner.tuner import completed_lora, head_names, use_fast_attention

__all__ = ["completed_lora", "head_names", "register", "use_fast_attention"]

register()
