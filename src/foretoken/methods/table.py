"""The table of all methods, by their names in recipes and on the command line."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from peft import PeftConfig

from foretoken.methods.base import plain
from foretoken.methods.members import MEMBERS, Method, configured
from foretoken.methods.stack import StackConfig

METHODS: Mapping[str, Method] = ChainMap(
    {
        "stack": Method("stack", "several methods as one adapter", StackConfig, ""),
        "full": Method("full", "every parameter of the model", None, ""),
    },
    MEMBERS,
)


def make_config(name: str, **options: Any) -> PeftConfig:
    """Return the peft config of the method of this name.

    Raises:
        ConfigError: an unknown name or option (with the nearest known one), or a value that cannot work.

    >>> make_config("prefix-propagation", num_virtual_tokens=4).num_virtual_tokens
    4
    >>> make_config("prefix-propagaton")
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: method 'prefix-propagaton' is not known (did you mean 'prefix-propagation'?); ...
    """
    return configured(METHODS, name, options)


def methods_with(fact: str) -> str:
    """Return the names of the methods whose configs have a certain attribute.

    >>> methods_with("peft_types")
    'prefix-propagation, prefix-tuning and prompt-tuning'
    """
    names = [row.name for row in METHODS.values() if getattr(row.config, fact, None)]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def name_of(config: PeftConfig | None) -> str:
    """Return the name of a config's method; peft's type in lower case for one that is not in the table.

    >>> name_of(make_config("lora")), name_of(None)
    ('lora', 'full')
    """
    wanted = None if config is None else type(config)
    known = (row.name for row in METHODS.values() if row.config is wanted)
    return next(known, "") or str(plain(config.peft_type)).lower().replace("_", "-")  # type: ignore[union-attr]
