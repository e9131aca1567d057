r"""What an adapter's config may ask for: memory, counted before anything is made, and regular expressions, tried first.

peft reads ``target_modules`` and others as regular expressions, and a config may come from strangers. Python's matcher
takes time exponential in a name's length for some (``(\w+)+!``), and nothing within the process can stop it: it holds
the interpreter's lock. Rules for which expressions are harmless refuse good ones or miss bad ones. So the matching is
done once in a process of its own, which can be killed. Plain names, which nearly all adapters have, need no trial.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain
from typing import Any

import torch
from peft import LoraConfig, PeftConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from foretoken.errors import ConfigError, quoted
from foretoken.limits import check_memory
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.require import require_int

BYTES = 4  # of a number in training
SMALLER = "choose smaller values (num_virtual_tokens, rank, r, encoder_hidden_size...), or correct its config"
SECONDS = 3  # that the trial may take; matching the names of a large model takes milliseconds
PLAIN = re.compile(r"[\w.|-]*")  # nothing that repeats and no groups: matched in one walk over the name
WHOLE = "{}"  # how peft surrounds what is in a config
KEY = "(.*\\.)?({})$"
LAYERS = "(?:^|.*?\\.){}\\.(?P<idx>\\d+)\\."
SAVED = "(^|.*\\.){}($|\\..*)"
STRINGS = {"target_modules": WHOLE, "exclude_modules": WHOLE, "feedforward_modules": WHOLE}  # lists are plain names
LISTS = {"layers_pattern": LAYERS, "modules_to_save": SAVED, "rank_pattern": KEY, "alpha_pattern": KEY}
FILLS = {"normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_", "xavier_uniform_", "zeros_"}
TRIAL = """
import json, re, sys
names, patterns = json.load(sys.stdin)
for pattern in patterns:
    compiled = re.compile(pattern)
    for name in names:
        compiled.match(name)
        compiled.fullmatch(name)
"""


def check_fits(config: ForetokenConfig, dimensions: Dimensions, model: nn.Module) -> None:
    """Refuse a method whose modules, with the copies of those that it trains in full, would not fit into memory.

    Its modules are built as they always are, but on PyTorch's meta device, where tensors have shapes and no numbers.

    Raises:
        ConfigError: they would not fit, or a number is beyond what a tensor's shape can be.
    """
    try:
        with torch.device("meta"), WithoutValues():
            sites = config.sites(dimensions)
    except (RuntimeError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:150]
        raise ConfigError(f"{type(config).__name__} has sizes that no tensor can have ({reason}); {SMALLER}") from error
    held = (tensor for module in sites.modules() for tensor in chain(module.parameters(), module.buffers()))
    new = {id(tensor): tensor for tensor in held if tensor.is_meta}
    numbers = sum(tensor.numel() for tensor in new.values())
    numbers += copied_numbers(config.modules_with(dimensions.heads) or (), model)
    check_memory(numbers * BYTES, what=f"the adapter ({type(config).__name__})", remedy=SMALLER)


class WithoutValues(TorchFunctionMode):
    """Leaves new tensors unfilled: on the meta device they have no values, and PyTorch pretends to fill them slowly."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in FILLS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def check_lora(lora: PeftConfig, model: nn.Module) -> None:
    """Refuse a LoRA, or another adapter of peft's, whose names cannot be matched, or that would not fit into memory.

    Raises:
        ConfigError: a regular expression is wrong or takes too long, or the adapter would not fit.
    """
    check_patterns(lora, [path for path, _ in model.named_modules()])
    if isinstance(lora, LoraConfig):
        if lora.megatron_config:
            raise ConfigError("megatron_config makes peft import the module that megatron_core names; remove both")
        numbers = lora_numbers(lora, model) + copied_numbers(lora.modules_to_save or (), model)
        check_memory(numbers * BYTES, what="the adapter (LoraConfig)", remedy=SMALLER)


def lora_numbers(lora: LoraConfig, model: nn.Module) -> int:
    """Return how many numbers a LoRA has: R (D_in + D_out) for every map that it targets."""
    numbers = 0
    kinds: Any = nn.Module
    ranks = lora.rank_pattern or {}
    if lora.target_modules == "all-linear":
        lora, kinds = copy(lora), nn.Linear | Conv1D
        lora.target_modules = ".*"
    for path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() < 2 or not isinstance(module, kinds):
            continue
        if check_target_module_exists(lora, path):
            rank = ranks.get(get_pattern_key(list(ranks), path), lora.r)
            require_int("the rank (r, rank_pattern)", rank, minimum=1)
            numbers += rank * (weight.shape[0] + weight[0].numel())
    return numbers


def copied_numbers(names: Iterable[str], model: nn.Module) -> int:
    """Return how many numbers the modules of these names have, which an adapter trains as copies of its own."""
    wanted = tuple(f".{name}" for name in names)
    found = [module for path, module in model.named_modules() if f".{path}".endswith(wanted)]
    return sum(parameter.numel() for module in found for parameter in module.parameters())


def check_patterns(config: PeftConfig, names: Sequence[str]) -> None:
    """Try an adapter's regular expressions on the names of a model's modules.

    Raises:
        ConfigError: one is no regular expression, or matching takes too long.
    """
    for option, given, pattern in patterns_of(config):
        if not PLAIN.fullmatch(given) and (problem := tried(pattern, names)) is not None:
            shown = quoted(given, longest=60)
            raise ConfigError(f"{option} has the regular expression {shown}, {problem}; give a list of plain names")


def patterns_of(config: PeftConfig) -> Iterator[tuple[str, str, str]]:
    """Yield the option, what it says, and the regular expression that peft makes of it."""
    for option, around in STRINGS.items():
        given: Any = getattr(config, option, None)
        if isinstance(given, str):
            yield option, given, around.format(given)
    for option, around in LISTS.items():
        given = getattr(config, option, None) or ()
        for one in [given] if isinstance(given, str) else given:
            if isinstance(one, str):
                yield option, one, around.format(one)


def tried(pattern: str, names: Sequence[str]) -> str | None:
    """Return what is wrong with a regular expression; None for nothing."""
    command = [sys.executable or "python3", "-I", "-S", "-c", TRIAL]
    given = json.dumps([list(names), [pattern]])
    try:
        ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"which takes more than {SECONDS} seconds to match with the names of the model's modules"
    except OSError as error:
        return f"which could not be tried ({error})"
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        return f"which cannot be matched ({last[:100]})"
    return None
