"""Where methods meet backbones, and the only place that touches peft's internals. Importing it registers the methods.

``peft.utils.register_peft_method`` takes only members of peft's own enumeration; the tables that it writes to are
public and also take strings, which works for every call of the life cycle (docs/decisions/0002-peft-registration.md).
"""

from typing import Any

from peft import mapping

from foretoken.errors import ConfigError
from foretoken.methods.base import ForetokenConfig, MethodName
from foretoken.methods.members import MEMBERS, Method
from foretoken.methods.table import METHODS
from foretoken.tuner.checkpoints.loading import wrap_loading
from foretoken.tuner.forward.sites import NAME
from foretoken.tuner.tuner import ForetokenModel

PEFT_TABLES: tuple[dict[Any, Any], ...] = (
    mapping.PEFT_TYPE_TO_CONFIG_MAPPING,
    mapping.PEFT_TYPE_TO_TUNER_MAPPING,
    mapping.PEFT_TYPE_TO_PREFIX_MAPPING,
)


def register() -> None:
    """Write every method into peft's tables, and wrap peft's loading functions; a second call changes nothing."""
    wrap_loading()
    for config in own_configs():
        for table, entry in zip(PEFT_TABLES, (config, ForetokenModel, NAME), strict=True):
            table[MethodName(config.method_type)] = entry


def register_method(method: Method) -> None:
    """Register a method from outside the package: with recipes and the command line by its name, and with peft.

    Raises:
        ConfigError: there is a method of this name or of this peft type.
    """
    types = [config.method_type for config in own_configs()]
    if method.name in METHODS or getattr(method.config, "method_type", None) in types:
        raise ConfigError(f"method {method.name!r} or its peft type is there already; choose another name for yours")
    MEMBERS[method.name] = method
    register()


def unregister_method(name: str) -> None:
    """Remove a method that :func:`register_method` registered."""
    config = MEMBERS.pop(name).config
    for table in PEFT_TABLES:
        table.pop(MethodName(getattr(config, "method_type", "")), None)


def own_configs() -> list[type[ForetokenConfig]]:
    """Return the configs of the methods that are foretoken's own, and not peft's."""
    configs = (method.config for method in METHODS.values())
    return [config for config in configs if config is not None and issubclass(config, ForetokenConfig)]


register()
