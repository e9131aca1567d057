"""Which engine computes attention, and whether batches are packed: the one place where that is chosen.

A call's own ``engine`` wins; then what :func:`use_engine` was told (the recipe's ``training.attention_engine``), then
the environment variable ``FORETOKEN_ATTENTION_ENGINE``, then what is fastest on the device. A name that a kind of
attention does not have, or that cannot do what is asked of it (dropout, another kernel), leaves the choice to the
device. Packing: :func:`use_packing`, ``FORETOKEN_PACKING`` (0 or 1), then the device.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import torch

from foretoken.errors import ConfigError, did_you_mean

ENGINE_VARIABLE = "FORETOKEN_ATTENTION_ENGINE"
PACKING_VARIABLE = "FORETOKEN_PACKING"
PORTABLE = ("gather-sdpa", "sdpa")  # one of them is in every table, and can do everything
NAMES = ("block", "gather-sdpa", "sdpa", "flex", "reference")

_chosen: dict[str, str | bool | None] = {"engine": None, "packing": None}


def use_engine(name: str | None) -> None:
    """Compute attention by this engine from now on; None: by what is fastest.

    Raises:
        ConfigError: there is no such engine.

    >>> use_engine("blok")
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: attention engine 'blok' is not known (did you mean 'block'?); use one of block, ...
    """
    if name is not None:
        check_engine(name, NAMES)
    _chosen["engine"] = name


def use_packing(flag: bool | None) -> None:
    """Pack batches, or never, from now on; None: where it pays."""
    _chosen["packing"] = flag


def check_engine(name: str, known: Collection[str]) -> None:
    """Raise ConfigError for a name that is not known."""
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"attention engine {name!r} is not known{hint}; use one of {', '.join(known)}")


def wanted_engine() -> str | None:
    """Return the engine that the user has named, or None."""
    name = _chosen["engine"] or os.environ.get(ENGINE_VARIABLE) or None
    if name is not None:
        check_engine(str(name), NAMES)
    return None if name is None else str(name)


def choose_engine(table: Collection[str], device: torch.device, *, dropout: float, kernel: str = "exponential") -> str:
    """Return the engine of a table for one call."""
    wanted = wanted_engine()
    if wanted is not None and wanted in table and fits(wanted, device, dropout=dropout, kernel=kernel):
        return wanted
    if "block" in table and fits("block", device, dropout=dropout, kernel=kernel):
        return "block"
    return next(name for name in PORTABLE if name in table)


def fits(name: str, device: torch.device, *, dropout: float, kernel: str = "exponential") -> bool:
    """Tell whether an engine can do what is asked of it here."""
    if name == "block":
        return device.type == "cpu" and not dropout and kernel == "exponential" and not is_traced()
    return name != "flex" or (not dropout and kernel == "exponential")


def is_traced() -> bool:
    """Tell whether a graph is being made, which knows no shapes that depend on the documents."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def check_fits(name: str, device: torch.device, *, dropout: float, kernel: str) -> None:
    """Raise ConfigError where an engine that was named for one call cannot do what that call asks."""
    if not fits(name, device, dropout=dropout, kernel=kernel):
        raise ConfigError(
            f"engine {name!r} cannot do this call (dropout {dropout}, kernel {kernel!r}, on {device.type}): it has no "
            f"dropout of attention weights and the exponential kernel alone{', on a CPU' if name == 'block' else ''}; "
            "use engine 'gather-sdpa', or leave it out"
        )


def packs(device: torch.device) -> bool:
    """Tell whether batches are packed on this device: by default on a CPU, where it was measured."""
    if is_traced():
        return False
    chosen, variable = _chosen["packing"], os.environ.get(PACKING_VARIABLE)
    if chosen is not None:
        return bool(chosen)
    if variable not in (None, "", "0", "1"):
        raise ConfigError(f"{PACKING_VARIABLE} is {variable!r}; expected 0 (never) or 1 (always)")
    return device.type == "cpu" if not variable else variable == "1"


def describe(device: torch.device | str) -> str:
    """Say in words what computes attention on a device."""
    place = torch.device(device)
    wanted = wanted_engine()
    window = choose_engine(("block", "gather-sdpa", "flex", "reference"), place, dropout=0.0, kernel="exponential")
    dense = choose_engine(("sdpa", "reference"), place, dropout=0.0, kernel="exponential")
    packed = "packed" if packs(place) else "padded"
    return f"attention on {place.type}: windows {window}, dense {dense}, batches {packed}" + (
        "" if wanted is None else f" ({wanted} was asked for)"
    )
