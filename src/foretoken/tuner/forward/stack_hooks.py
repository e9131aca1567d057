"""One forward pass of one stack of layers: its plan, its rows in front of the text, and the hooks around it.

Shapes: B batch, N text tokens, P rows in front of the text, D model width.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from foretoken.backbones.base import Stack, unchanged
from foretoken.backbones.masks import prefix_without_positions, with_positions
from foretoken.tuner.checks import check_positions_agree
from foretoken.tuner.forward.plan import PassState, Phase, Plan, make_groups
from foretoken.tuner.forward.replay import CheckpointReplay
from foretoken.tuner.forward.sites import NAME
from foretoken.tuner.quantised import compute_type

if TYPE_CHECKING:
    from foretoken.tuner.forward.model_hooks import ModelHooks

ROWS = "_foretoken_rows"  # where a key-value cache remembers the rows that it was begun with


class StackHooks:
    """The hooks of one stack."""

    def __init__(self, model_hooks: ModelHooks, stack: Stack) -> None:
        self.model_hooks = model_hooks
        self.stack = stack
        self.module = stack.module(model_hooks.body)
        self.layers = stack.layer_modules(model_hooks.body)
        self.pass_state = PassState(model_hooks.body)
        self.is_padding = False
        self.argument_names = list(inspect.signature(type(self.module).forward).parameters)[1:]
        self.handles = [
            self.module.register_forward_pre_hook(self.before_stack, with_kwargs=True),
            self.module.register_forward_hook(self.after_stack),
            *([] if stack.is_causal else self.rows_enter_and_leave()),
        ]

    def rows_enter_and_leave(self) -> list[Any]:
        """Register hooks where rows enter and leave the hidden states."""
        handles: list[Any] = []
        entry = self.stack.entry_modules(self.model_hooks.body)
        if entry is not None:
            last, embeddings = entry
            handles.append(embeddings.register_forward_pre_hook(self.before_embeddings, with_kwargs=True))
            handles.append(last.register_forward_hook(self.after_embeddings))
        else:
            handles.append(self.layers[0].register_forward_pre_hook(self.before_first_layer, with_kwargs=True))
        if self.stack.extend_layer is not unchanged:
            hooks = (layer.register_forward_pre_hook(self.before_layer, with_kwargs=True) for layer in self.layers)
            handles.extend(hooks)
        if self.stack.end:
            end = self.module.get_submodule(self.stack.end)
            handles.append(end.register_forward_hook(self.strip_rows))
        return handles

    def contains(self, module: nn.Module) -> bool:
        """Tell whether a module is a part of this stack."""
        return any(module is part for part in self.module.modules())

    @property
    def plan(self) -> Plan | None:
        """The pass that is under way."""
        return self.pass_state.plan

    def before_stack(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Plan the pass; run the rows by themselves, or let masks allow for them."""
        if self.is_alone():
            return None
        kwargs = {**kwargs, **dict(zip(self.argument_names, args, strict=False))}
        plan = self.pass_state.plan = self.make_plan(kwargs)
        self.pass_state.text_is_frozen = False
        self.model_hooks.stay_attached()
        self.replay_checkpoints()
        if plan is not None and self.stack.takes_positions:
            kwargs = with_positions(kwargs)
        if plan is None or not plan.num_rows:
            return (), kwargs
        if self.stack.is_causal:
            self.pass_state.plan = replace(plan, phase=Phase.PREFIX_CACHED, row_states=self.row_states(plan, kwargs))
            return (), kwargs
        mask = kwargs.get("attention_mask")
        self.pass_state.plan = replace(
            plan,
            phase=Phase.JOINT,
            late=not self.stack.entry,
            text_mask=mask if isinstance(mask, Tensor) and mask.dim() == 2 else None,
        )
        return (), self.stack.extend_inputs(kwargs, plan.row_mask())

    def is_alone(self) -> bool:
        """Tell whether the rows are running by themselves."""
        return self.plan is not None and self.plan.phase is Phase.PREFIX_ONLY

    def make_plan(self, kwargs: dict[str, Any]) -> Plan | None:
        """Return who uses which adapter in this pass; None when adapters are disabled."""
        token_ids, embeddings = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
        site = next((site for site in self.model_hooks.sites if len(site)), None)
        text = embeddings if token_ids is None else token_ids
        model_hooks, is_mixed = (
            self.model_hooks,
            self.model_hooks.names is not None,
        )  # without a site of ours: LoRA's names
        if text is None or (not is_mixed if site is None else site.disable_adapters):
            return None
        size, active = text.shape[0], [] if site is None else site.active_adapters
        groups = make_groups(model_hooks.names, active, self.num_rows_of, size, text.device)
        num_rows = max([group.offset + group.num_rows for group in groups], default=0)
        free = frozenset(group.adapter for group in groups if self.is_position_free(group.adapter))
        plan = Plan(groups, num_rows, size, text.device, token_ids=token_ids, is_mixed=is_mixed, free=free)
        check_positions_agree(plan)
        return plan

    def num_rows_of(self, adapter: str) -> int:
        """Return how many rows an adapter puts in front of this stack's text."""
        site = getattr(self.layers[0], NAME, None)
        return site[adapter].num_rows if site is not None and adapter in site else 0

    def is_position_free(self, adapter: str) -> bool:
        """Tell whether an adapter's rows are met by queries without their rotation."""
        site = getattr(self.layers[0], NAME, None)
        return site is not None and adapter in site and site[adapter].position_free

    def row_states(self, plan: Plan, kwargs: dict[str, Any]) -> dict[int, tuple[Tensor, Tensor]]:
        """Return each layer's keys and values of the rows; a key-value cache keeps those it was begun with."""
        cache = kwargs.get("past_key_values")
        if cache is None:
            return self.run_rows(plan, kwargs)
        who, state, known = self.users(plan), self.state(plan), cache.__dict__.get(ROWS)
        # where rows see an encoder, a cache that begins anew may do so with other documents
        lasts = self.stack.cross is None or cache.get_seq_length() > 0
        if known and lasts and known[0] == who and (known[1] == state or torch.compiler.is_compiling()):
            return known[2]
        states = self.run_rows(plan, kwargs)
        if not torch.is_grad_enabled():
            cache.__dict__[ROWS] = (who, state, states)
        return states

    def users(self, plan: Plan) -> tuple[Any, ...]:
        """Return who uses which adapter."""
        return tuple(self.model_hooks.names or ()), tuple(group.adapter for group in plan.groups), plan.batch_size

    def state(self, plan: Plan) -> tuple[Any, ...]:
        """Return what tells whether the adapters' parameters are as they were."""
        if torch.compiler.is_compiling():
            return ()
        modules = [
            site[group.adapter] for site in self.model_hooks.sites for group in plan.groups if group.adapter in site
        ]
        parameters = (p for module in modules for p in module.parameters())
        return tuple((id(p), None if p.is_inference() else p._version) for p in parameters)

    def run_rows(self, plan: Plan, kwargs: dict[str, Any]) -> dict[int, tuple[Tensor, Tensor]]:
        """Run the rows alone: once for all documents where nothing distinguishes these."""
        alike = plan.all_rows_everywhere and not self.module.training and self.stack.cross is None
        size = 1 if alike else plan.batch_size
        dtype = compute_type(self.layers[0])
        shape = (size, plan.num_rows, self.model_hooks.dimensions.hidden_size)
        given = {"inputs_embeds": torch.zeros(shape, dtype=dtype, device=plan.device), "use_cache": False}
        if self.stack.takes_positions:
            given |= prefix_without_positions(size, plan.num_rows, plan.device)
        for name in ("encoder_hidden_states", "encoder_attention_mask"):
            if kwargs.get(name) is not None:
                given[name] = kwargs[name]
        alone = replace(plan, phase=Phase.PREFIX_ONLY, batch_size=size, token_ids=None, row_states={}, memo={})
        with self.pass_state.using(alone):
            self.module(**given)
        return alone.row_states

    def replay_checkpoints(self) -> None:
        """Recompute checkpointed layers under the plan of their forward pass."""
        for number, layer in enumerate(self.layers):
            if not getattr(layer, "gradient_checkpointing", False):
                continue
            checkpoint: Any = layer._gradient_checkpointing_func
            if not isinstance(checkpoint, CheckpointReplay):
                layer._gradient_checkpointing_func = CheckpointReplay(checkpoint, self, number)  # type: ignore[assignment]

    def forget_checkpoints(self) -> None:
        """Give the layers their own checkpointing functions back."""
        for layer in self.layers:
            checkpoint = getattr(layer, "_gradient_checkpointing_func", None)
            if isinstance(checkpoint, CheckpointReplay):
                layer._gradient_checkpointing_func = checkpoint.checkpoint  # type: ignore[assignment]

    def before_embeddings(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the token ids as the stack will see them: Longformer pads them to its window on the way."""
        plan = self.plan
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.is_padding = plan is not None and plan.token_ids is None and ids is not None
        if plan is not None and plan.token_ids is not None and ids is not None:
            self.pass_state.plan = replace(plan, token_ids=ids)

    def after_embeddings(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Make room for the rows, unless this is padding for embeddings; the first layer's site fills the room."""
        return output if self.is_padding else self.with_room(output)

    def before_first_layer(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make room for the rows right before the first layer."""
        if args:
            return (self.with_room(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self.with_room(kwargs["hidden_states"])}

    def before_layer(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let a layer's other arguments allow for the rows."""
        plan = self.plan
        if plan is None or not plan.rows_here:
            return args, kwargs
        return args, self.stack.extend_layer(kwargs, plan.row_mask())

    def with_room(self, hidden: Tensor) -> Tensor:
        """(B, N, D) -> (B, P + N, D)."""
        rows = 0 if self.plan is None else self.plan.rows_here
        return nn.functional.pad(hidden, (0, 0, rows, 0)) if rows else hidden

    def strip_rows(self, end: nn.Module, args: Any, output: Any) -> Any:
        """Take the rows away again, before pooler, heads and decoder."""
        rows = 0 if self.plan is None else self.plan.rows_here
        return stripped(output, rows) if rows else output

    def after_stack(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Take the rows away from what the stack gives back and from recorded hidden states; end the pass."""
        if self.is_alone():
            return output
        plan, self.pass_state.plan = self.plan, None
        if plan is None or not plan.rows_here:
            return output
        if not self.stack.end:
            output = stripped(output, plan.num_rows)
        text = output[0].shape[1]
        if isinstance(output, tuple):
            return tuple(to_text(x, plan.num_rows, text) if isinstance(x, tuple) else x for x in output)
        if output.get("hidden_states") is not None:
            output["hidden_states"] = to_text(output["hidden_states"], plan.num_rows, text)
        return output


def stripped(output: Any, num_rows: int) -> Any:
    """Take ``num_rows`` rows from the front of a stack's output: a tensor, a tuple, or a ModelOutput."""
    if isinstance(output, Tensor):
        return output[:, num_rows:]
    if isinstance(output, tuple):
        return (output[0][:, num_rows:], *output[1:])
    output["last_hidden_state"] = output["last_hidden_state"][:, num_rows:]
    return output


def to_text(states: tuple[Tensor, ...], rows: int, length: int) -> tuple[Tensor, ...]:
    """Take the rows from the front of (B, P + N, D) states, N >= length (BigBird's are padded); keep anything else."""
    return tuple(x[:, rows:] if x.dim() == 3 and x.shape[1] >= rows + length else x for x in states)
