"""Adapters of foretoken's written as checkpoints of peft's own prompt learning.

Shapes: P prefix length, L layers, D model width, H_kv key-value heads, K head width, W = H_kv K.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import peft
import torch
from peft import get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn

from foretoken.errors import AdapterError
from foretoken.files import PathLike, atomic_file, write_json
from foretoken.methods.base import Sites
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.prefix import PrefixConfig
from foretoken.methods.prefix_propagation import PrefixPropagationConfig, PropagatedPrefix
from foretoken.methods.prefix_tuning import PrefixColumns, PrefixTuningConfig
from foretoken.methods.prompt_tuning import PromptTuningConfig
from foretoken.methods.stack import plain
from foretoken.tuner.checkpoints.files import CONFIG, TENSORS
from foretoken.tuner.checkpoints.from_peft import ONE_STACK, PROMPTS, below, turned
from foretoken.tuner.forward.model_hooks import ModelHooks
from foretoken.tuner.forward.plan import Group, Plan
from foretoken.tuner.forward.sites import NAME
from foretoken.tuner.prefix_init import model_hooks_of
from foretoken.tuner.probe import adapters_off, frozen_states


def to_peft(model: nn.Module, folder: PathLike, adapter_name: str = "default") -> None:
    """Write an adapter in the form of peft's own prompt learning, the trained head included.

    Prefix-tuning becomes PREFIX_TUNING. In a causal decoder so does prefix-propagation, and prompt tuning where
    positions rotate: keys and values are all that the text sees of the rows. Prompt tuning becomes PROMPT_TUNING
    elsewhere. A projected prefix is written as what its network yields.

    Args:
        model: a model with the adapter.
        folder: where to write; ``PeftModel.from_pretrained`` loads it.
        adapter_name: which adapter.

    Raises:
        AdapterError: peft has nothing that does what this adapter does on this family.
        SaveError: the files cannot be written.
    """
    model_hooks = model_hooks_of(model, adapter_name)
    config, sites = model_hooks.built[adapter_name]
    if not isinstance(config, PrefixTuningConfig | PrefixPropagationConfig | PromptTuningConfig):
        raise AdapterError(
            f"peft has nothing like this adapter ({type(config).__name__}); it takes prefix-tuning, prompt tuning, and "
            "prefix-propagation of causal decoders"
        )
    if config.position_free:
        raise AdapterError("with position_free queries meet the prefix in a way that peft's methods do not have")
    if config.trained_tokens:
        raise AdapterError("peft's prompt learning has no place for trained token embeddings (trainable_token_indices)")
    if config.task_type is None:
        raise AdapterError(
            "peft's prompt learning cannot be loaded without a task_type; set it: "
            f"model.peft_config[{adapter_name!r}].task_type = 'SEQ_CLS', for example"
        )
    with torch.no_grad(), adapters_off(model_hooks.body):
        kind, prompts = as_prompts(model_hooks, adapter_name, config, sites)
    state = get_peft_model_state_dict(model, adapter_name=adapter_name, save_embedding_layers=False)
    heads = {key: tensor for key, tensor in state.items() if f".{NAME}." not in key}
    tensors = {PROMPTS: prompts} | {f"base_model.{below(key)}": tensor for key, tensor in heads.items()}
    wanted = [name for name in config.modules_to_save or [] if any(f".{name}." in key for key in heads)]
    folder = Path(folder)
    write_json(folder / CONFIG, peft_fields(kind, config, model_hooks.dimensions, modules_to_save=wanted or None))
    with atomic_file(folder / TENSORS) as file:
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, file, {"format": "pt"})


def as_prompts(model_hooks: ModelHooks, adapter_name: str, config: PrefixConfig, sites: Sites) -> tuple[str, Tensor]:
    """Return the kind of peft's prompt learning that does what this adapter does, and its ``prompt_embeddings``.

    Raises:
        AdapterError: there is none.
    """
    stack = model_hooks.stacks[0].stack
    if isinstance(config, PrefixTuningConfig):
        check_cache(model_hooks)
        branches = [branch for branch in sites.attention.values() if isinstance(branch, PrefixColumns)]
        return "PREFIX_TUNING", prefix_of([branch.prefix() for branch in branches], model_hooks)
    if stack.is_causal and (stack.attention.is_rotary or isinstance(config, PrefixPropagationConfig)):
        return "PREFIX_TUNING", prefix_of(row_states(model_hooks, adapter_name, sites), model_hooks)
    if isinstance(config, PrefixPropagationConfig):
        raise AdapterError(
            f"in {model_hooks.dimensions.model_type} models the rows of prefix-propagation read the text, which "
            "those of peft's methods do not; keep the adapter as it is"
        )
    if len(model_hooks.stacks) > 1:
        raise AdapterError(
            "peft lets the decoder read the rows at the encoder's end, here they are removed before; "
            "keep the adapter as it is"
        )
    entry = sites.layers[0]
    assert isinstance(entry, PropagatedPrefix)
    return "PROMPT_TUNING", before_embeddings(entry.prefix(), model_hooks)


def check_cache(model_hooks: ModelHooks) -> None:
    """Raise AdapterError for a family on which peft's prefix-tuning cannot run."""
    if len(model_hooks.stacks) > 1:
        raise AdapterError(ONE_STACK)
    if "past_key_values" not in inspect.signature(type(model_hooks.body).forward).parameters:
        raise AdapterError(
            f"peft's prefix-tuning needs a key-value cache, and {type(model_hooks.body).__name__} takes none; "
            "keep the adapter as it is"
        )


def row_states(model_hooks: ModelHooks, adapter_name: str, sites: Sites) -> list[Tensor]:
    """Return every layer's keys and values (P, 2 W) of the rows in front, which in a causal stack see no text."""
    rows, device = sites.layers[0].prefix_length, next(sites.layers[0].parameters()).device
    plan = Plan((Group(adapter_name, None, 0, rows),), rows, 1, device)
    states = model_hooks.stacks[0].run_prefix(plan, {})
    both = (states[layer] for layer in sorted(states))
    return [torch.cat([x[0].transpose(0, 1).flatten(1) for x in pair], dim=-1) for pair in both]


def prefix_of(parts: list[Tensor], model_hooks: ModelHooks) -> Tensor:
    """Return the (P, L 2 W) ``prompt_embeddings`` of (P, 2 W) keys and values per layer."""
    return torch.cat(turned(torch.cat(parts, dim=-1), model_hooks, back=False), dim=-1)


def before_embeddings(rows: Tensor, model_hooks: ModelHooks) -> Tensor:
    """Return (P, D) embeddings that enter the first layer as ``rows``.

    Raises:
        AdapterError: there are none: the family does not only add to its embeddings.
    """
    embedding = model_hooks.dimensions.embedding
    if embedding is not None and embedding.embedding_dim == rows.shape[-1]:
        shift = frozen_states(model_hooks, torch.zeros_like(rows)).entering[0]
        embeddings = rows - shift.to(rows)
        entering = frozen_states(model_hooks, embeddings).entering[0].to(rows)
        if torch.allclose(entering, rows, atol=1e-4 * float(rows.abs().max()), rtol=0):
            return embeddings
    raise AdapterError(
        f"peft's rows pass the embeddings of {type(model_hooks.body).__name__}, which do more than add to them; "
        "no rows of peft's do what these do"
    )


def peft_fields(
    kind: str, config: PrefixConfig, dimensions: Dimensions, *, modules_to_save: list[str] | None
) -> dict[str, Any]:
    """Return the fields of peft's own config."""
    shape, is_prefix = dimensions.attentions[0], kind == "PREFIX_TUNING"
    given: dict[str, Any] = {
        "task_type": config.task_type,
        "num_virtual_tokens": config.num_virtual_tokens,
        "num_layers": dimensions.num_layers,
        "num_transformer_submodules": 1,
        "inference_mode": True,
        "base_model_name_or_path": config.base_model_name_or_path,
        "modules_to_save": modules_to_save,
    }
    made: peft.PeftConfig
    if is_prefix:
        width, heads = shape.num_key_value_heads * shape.head_dim, shape.num_key_value_heads
        made = peft.PrefixTuningConfig(token_dim=width, num_attention_heads=heads, encoder_hidden_size=width, **given)
    else:
        made = peft.PromptTuningConfig(token_dim=dimensions.hidden_size, num_attention_heads=shape.num_heads, **given)
    return {name: plain(value) for name, value in made.to_dict().items()}
