"""What a model fills in on its adapter's config: the backbone and the head. One config may serve several models."""

from __future__ import annotations

from collections.abc import Sequence

from peft import LoraConfig

from foretoken.methods.base import ForetokenConfig
from foretoken.methods.dimensions import Dimensions

FILLED_IN = "_foretoken_filled_in"  # on a config that a model filled in, and no file: the heads that it added


def is_new(config: ForetokenConfig) -> bool:
    """Tell whether a config is a user's, and not a saved adapter's that belongs to one backbone."""
    return config.backbone is None or FILLED_IN in config.__dict__


def fill_in(config: ForetokenConfig, dimensions: Dimensions) -> None:
    """Note the backbone, and the head among the modules that are trained in full."""
    given = given_modules(config)
    if is_new(config):
        config.__dict__[FILLED_IN] = set(dimensions.heads) - set(given)
    config.backbone = dimensions.fingerprint()
    config.modules_to_save = united(given, dimensions.heads)


def with_heads(config: ForetokenConfig | LoraConfig, head: Sequence[str]) -> list[str] | None:
    """Return the modules to train in full: the user's, and the model's new head."""
    return united(given_modules(config), head)


def given_modules(config: ForetokenConfig | LoraConfig) -> list[str]:
    """Return the user's modules to train in full, without the head of another model that the config has served."""
    added = config.__dict__.get(FILLED_IN, ())
    return [name for name in config.modules_to_save or [] if name not in added]


def united(given: Sequence[str], head: Sequence[str]) -> list[str] | None:
    """Return the names of both, each once."""
    return list(dict.fromkeys([*given, *head])) or None
