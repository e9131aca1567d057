"""Where methods meet backbones, and the only place that touches peft's internals. Importing it registers the methods.

``peft.utils.register_peft_method`` insists on peft's own enumeration; the tables it writes to are public and take
string keys as well, which works for every call of the life cycle (see docs/decisions/0002).
"""

from peft import mapping

from foretoken.methods import METHODS
from foretoken.methods.base import ForetokenConfig, MethodName
from foretoken.tuner.auxiliary import auxiliary_loss_of
from foretoken.tuner.checkpoints.loading import wrap_loading
from foretoken.tuner.forward.sites import NAME
from foretoken.tuner.limits import check_lora
from foretoken.tuner.lora import completed_lora
from foretoken.tuner.speed import use_fast_attention
from foretoken.tuner.tuner import ForetokenModel, head_names, new_sites

__all__ = [
    "auxiliary_loss_of",
    "check_lora",
    "completed_lora",
    "head_names",
    "new_sites",
    "register",
    "use_fast_attention",
]


def register() -> None:
    """Write every method of the table into peft's tables, and wrap what loads them; a second call changes nothing."""
    wrap_loading()
    for row in METHODS.values():
        if row.config is None or not issubclass(row.config, ForetokenConfig):
            continue
        key = MethodName(row.config.method_type)
        mapping.PEFT_TYPE_TO_CONFIG_MAPPING[key] = row.config  # type: ignore[index]
        mapping.PEFT_TYPE_TO_TUNER_MAPPING[key] = ForetokenModel  # type: ignore[index]
        mapping.PEFT_TYPE_TO_PREFIX_MAPPING[key] = NAME  # type: ignore[index]


register()
