"""Which engine computes attention, and whether batches are packed: the one place where that is chosen.

A call's own ``engine`` wins, then the engine of :func:`use_engine` (the recipe's ``training.attention_engine``), then
the environment variable ``FORETOKEN_ATTENTION_ENGINE``, then the fastest one on the device. A kind of attention that
lacks the named engine, or a call that the engine cannot compute (dropout, another kernel), falls back to the fastest
one. Packing: :func:`use_packing`, ``FORETOKEN_PACKING`` (0 or 1), then the device.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from foretoken.attention.engines.table import BY_MASK, GATHER, NAMES, Engine
from foretoken.attention.kernels import SOFTMAX, Weighting
from foretoken.attention.masks import DenseMask, Packed, Window
from foretoken.errors import ConfigError, did_you_mean
from foretoken.machine.tracing import is_traced

ENGINE_VARIABLE = "FORETOKEN_ATTENTION_ENGINE"
PACKING_VARIABLE = "FORETOKEN_PACKING"

_chosen: dict[str, str | bool | None] = {"engine": None, "packing": None}


def use_engine(name: str | None) -> None:
    """Compute attention with this engine from now on; None: with the fastest one.

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
    """Pack batches always (True) or never (False) from now on; None: where it is faster."""
    _chosen["packing"] = flag


@contextmanager
def unpacked() -> Iterator[None]:
    """Pad the batches that run inside the block, whatever was chosen."""
    before = _chosen["packing"]
    _chosen["packing"] = False
    try:
        yield
    finally:
        _chosen["packing"] = before


def check_engine(name: str, known: Collection[str]) -> None:
    """Raise ConfigError for a name that is not known."""
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"attention engine {name!r} is not known{hint}; use one of {', '.join(known)}")


def wanted_engine() -> str | None:
    """Return the engine that the user named, or None."""
    name = _chosen["engine"] or os.environ.get(ENGINE_VARIABLE) or None
    if name is not None:
        check_engine(str(name), NAMES)
    return None if name is None else str(name)


def fits(engine: Engine, device: torch.device, weighting: Weighting) -> bool:
    """Tell whether an engine can compute a call with this weighting on a device."""
    if engine.plain_only and weighting != SOFTMAX:
        return False
    return not engine.cpu_only or (device.type == "cpu" and not is_traced())


def choose_engine(candidates: Sequence[Engine], device: torch.device, weighting: Weighting = SOFTMAX) -> Engine:
    """Return the engine of one call: the one that the user named if it is a candidate and fits, else the first."""
    wanted = wanted_engine()
    able = [engine for engine in candidates if fits(engine, device, weighting)]
    for engine in able:
        if engine.name == wanted:
            return engine
    return next(engine for engine in able if not engine.on_request)


def named_engine(name: str, candidates: Sequence[Engine], device: torch.device, weighting: Weighting) -> Engine:
    """Return the engine that a call names.

    Raises:
        ConfigError: there is no such engine for this mask, or it cannot do this call.
    """
    check_engine(name, [engine.name for engine in candidates])
    engine = next(engine for engine in candidates if engine.name == name)
    if not fits(engine, device, weighting):
        raise ConfigError(
            f"engine {name!r} cannot do this call (dropout {weighting.dropout}, kernel {weighting.kernel!r}, on "
            f"{device.type}): it supports no dropout of attention weights and only the exponential kernel"
            f"{', on a CPU' if engine.cpu_only else ''}; use engine 'gather-sdpa', or leave the engine out"
        )
    return engine


def packs_natively(device: torch.device, weighting: Weighting) -> bool:
    """Tell whether an engine computes windowed attention packed; otherwise attention pads the documents."""
    return choose_engine((*BY_MASK[Packed], GATHER), device, weighting) is not GATHER


def packs(device: torch.device) -> bool:
    """Tell whether batches are packed on this device: by default on a CPU, where it is faster; not on a GPU."""
    if is_traced():
        return False
    chosen, variable = _chosen["packing"], os.environ.get(PACKING_VARIABLE)
    if chosen is not None:
        return bool(chosen)
    if variable not in (None, "", "0", "1"):
        raise ConfigError(f"{PACKING_VARIABLE} is {variable!r}; expected 0 (never) or 1 (always)")
    return device.type == "cpu" if not variable else variable == "1"


def describe(device: torch.device | str) -> str:
    """Describe in words what computes attention on a device."""
    torch_device = torch.device(device)
    wanted = wanted_engine()
    window, dense = (choose_engine(BY_MASK[kind], torch_device).name for kind in (Window, DenseMask))
    packed = "packed" if packs(torch_device) else "padded"
    return f"attention on {torch_device.type}: windows {window}, dense {dense}, batches {packed}" + (
        "" if wanted is None else f" ({wanted} was asked for)"
    )
