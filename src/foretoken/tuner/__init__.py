"""Where methods meet backbones, and the only place that touches peft's internals. Importing it registers them."""

from foretoken.tuner.lora import completed_lora
from foretoken.tuner.registration import register
from foretoken.tuner.sizes import check_lora
from foretoken.tuner.speed import use_fast_attention
from foretoken.tuner.tuner import auxiliary_loss_of, head_names, new_sites

__all__ = [
    "auxiliary_loss_of",
    "check_lora",
    "completed_lora",
    "head_names",
    "new_sites",
    "register",
    "use_fast_attention",
]

register()
