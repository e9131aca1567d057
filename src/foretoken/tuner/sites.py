"""The modules that carry adapters, and the hooks that let them act.

A site is a small module registered under the name ``foretoken`` on a module of the backbone, so that parameters appear
as ``...layer.3.foretoken.<adapter>...`` while classes, names and state dict of the frozen model stay as they
are. One :class:`Wiring` per model holds the hooks.

Shapes: B batch, N text tokens, P rows in front of the text, D model width.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from foretoken.backbones.base import Backbone
from foretoken.errors import AdapterError
from foretoken.methods.base import AttentionBranch, LayerEntry
from foretoken.tuner.runtime import Plan, Replay, Runtime, make_groups

NAME = "foretoken"


class Site(nn.ModuleDict, BaseTunerLayer):
    """The adapters' modules at one place of the backbone, by adapter name."""

    adapter_layer_names = ("adapters",)
    weight = None  # type: ignore[assignment] # BaseTunerLayer would look for a wrapped layer's
    bias = None  # type: ignore[assignment]

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime
        self._disable_adapters = False
        self.merged_adapters: list[str] = []

    @property
    def adapters(self) -> Site:
        """The modules by adapter name, as peft asks for them."""
        return self

    def parts(self) -> Iterable[tuple[Any, Any]]:
        """Yield (group, module) for the adapters at work here in the current pass."""
        plan = self.runtime.plan
        for group in () if plan is None else plan.groups:
            if group.adapter in self:
                yield group, self[group.adapter]


class EntrySite(Site):
    """A layer entry: edits the rows in front of the text, and the text."""

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, P + N, D) -> (B, P + N, D)."""
        plan = self.runtime.plan
        parts = list(self.parts())
        if plan is None or not parts:
            return hidden
        rows, text = hidden[:, : plan.num_rows], hidden[:, plan.num_rows :]
        for group, entry in parts:
            if group.num_rows:
                rows = self.with_rows(rows, group, entry)
            ids = None if plan.token_ids is None else group.take(plan.token_ids)
            text = group.put(text, entry.on_text(group.take(text), ids))
        return torch.cat([rows, text], dim=1) if plan.num_rows else text

    def with_rows(self, rows: Tensor, group: Any, entry: LayerEntry) -> Tensor:
        """Let one adapter edit its own rows among all rows."""
        mine = group.take(rows)
        before, own, after = mine.split(
            [group.offset, group.num_rows, mine.shape[1] - group.offset - group.num_rows], 1
        )
        edited = entry.on_rows(own).to(rows.dtype)
        if own.shape[1] == mine.shape[1]:
            return group.put(rows, edited)
        return group.put(rows, torch.cat([before, edited, after], dim=1))

    def first_rows(self, plan: Plan, like: Tensor) -> Tensor:
        """Return the (B, P, D) rows that go in front of the text."""
        rows = like.new_zeros(plan.batch_size, plan.num_rows, like.shape[-1])
        for group, entry in self.parts():
            if not group.num_rows:
                continue
            size = plan.batch_size if group.index is None else group.index.shape[0]
            new = entry.first_rows(size).to(dtype=like.dtype, device=like.device)
            if group.num_rows < plan.num_rows:
                padding = (0, 0, group.offset, plan.num_rows - group.offset - group.num_rows)
                new = group.take(rows) + nn.functional.pad(new, padding)
            rows = group.put(rows, new)
        return rows


class AttentionSite(Site):
    """Score columns of one attention layer, put together from the adapters at work; a backbone's ``Branch``."""

    def scores(self, query: Tensor, scale: float) -> Tensor | None:
        """(B, H, N, K) -> (B, H, N, X) scaled scores; a column of another document's adapter is -inf."""
        columns = []
        for group, branch in self.parts():
            part = branch.scores(group.take(query), scale)
            if group.index is not None:
                hidden = query.new_full((*query.shape[:-1], branch.num_columns), float("-inf"))
                part = group.put(hidden, part)
            columns.append(part)
        return torch.cat(columns, dim=-1) if columns else None

    def combine(self, out: Tensor, probabilities: Tensor | None, query: Tensor) -> Tensor:
        """Let each adapter use the probabilities of its own columns."""
        start = 0
        for group, branch in self.parts():
            own = probabilities[..., start : start + branch.num_columns]  # type: ignore[index]
            start += branch.num_columns
            out = group.put(out, branch.combine(group.take(out), group.take(own), group.take(query)))
        return out


class OutputSite(Site):
    """A vector added to a module's output."""

    def forward(self, output: Tensor) -> Tensor:
        """(B, ..., D) -> (B, ..., D)."""
        for group, shift in self.parts():
            output = group.put(output, shift(group.take(output)))
        return output


def check_adapter_name(name: str) -> None:
    """Raise AdapterError for a name that cannot be a module's name."""
    if "." in name or hasattr(Site, name):
        raise AdapterError(f"an adapter cannot be called {name!r}; choose another name, without dots")


def site_class(module: nn.Module) -> type[Site]:
    """Return the class of site that carries a method's module."""
    if isinstance(module, LayerEntry):
        return EntrySite
    return AttentionSite if isinstance(module, AttentionBranch) else OutputSite


class Wiring:
    """The hooks of one model, and how to take them off again."""

    def __init__(self, body: nn.Module, backbone: Backbone) -> None:
        self.runtime = Runtime()
        self.backbone = backbone
        self.body = body
        self.layers = backbone.layer_modules(body)
        self.sites: list[Site] = []
        self.argument_names = list(inspect.signature(type(body).forward).parameters)[1:]
        stack = body.get_submodule(backbone.stack)
        self.handles = [
            body.register_forward_pre_hook(self.before_body, with_kwargs=True),
            backbone.embeddings_module(body).register_forward_pre_hook(self.before_embeddings, with_kwargs=True),
            backbone.entry_module(body).register_forward_hook(self.after_embeddings),
            stack.register_forward_hook(self.strip_rows),
            body.register_forward_hook(self.after_body),
        ]
        self.targets: list[nn.Module] = []
        backbone.attach_attention(body, backbone.attention_modules(body))

    def attach(self, target: nn.Module, module: nn.Module, adapter: str) -> None:
        """Put an adapter's module on a module of the backbone."""
        site = getattr(target, NAME, None)
        if site is None:
            site = site_class(module)(self.runtime)
            target.add_module(NAME, site)
            self.sites.append(site)
            if isinstance(site, EntrySite):
                self.handles.append(target.register_forward_pre_hook(self.before_layer, with_kwargs=True))
            elif isinstance(site, OutputSite):
                self.handles.append(target.register_forward_hook(self.after_module))
            self.targets.append(target)
        site[adapter] = module

    def remove(self) -> None:
        """Give back the model as it was."""
        for handle in self.handles:
            handle.remove()
        for target in self.targets:
            delattr(target, NAME)
        self.backbone.detach_attention(self.body, self.backbone.attention_modules(self.body))

    def num_rows(self, adapter: str) -> int:
        """Return how many rows an adapter puts in front of the text."""
        first = getattr(self.layers[0], NAME, {})
        return first[adapter].num_rows if adapter in first else 0

    def before_body(self, body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Plan the pass; let masks allow for the rows in front."""
        kwargs = {**kwargs, **dict(zip(self.argument_names, args, strict=False))}
        plan = self.runtime.plan = self.plan(kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
        self.replay_checkpoints()
        if plan is None or not plan.num_rows:
            return (), kwargs
        return (), self.backbone.extend_inputs(kwargs, plan.row_mask())

    def plan(self, token_ids: Tensor | None, embeddings: Tensor | None) -> Plan | None:
        """Return who uses which adapter in this pass; None when adapters are disabled."""
        site = next((site for site in self.sites if len(site)), None)
        text = embeddings if token_ids is None else token_ids
        if site is None or site.disable_adapters or text is None:
            return None
        size = text.shape[0]
        groups = make_groups(self.runtime.names, site.active_adapters, self.num_rows, size, text.device)
        num_rows = max([group.offset + group.num_rows for group in groups], default=0)
        return Plan(groups, num_rows, size, text.device, token_ids)

    def replay_checkpoints(self) -> None:
        """Recompute checkpointed layers under the plan of their forward pass."""
        for layer in self.layers:
            if not getattr(layer, "gradient_checkpointing", False):
                continue
            checkpoint: Any = layer._gradient_checkpointing_func
            if not isinstance(checkpoint, Replay):
                layer._gradient_checkpointing_func = Replay(checkpoint, self.runtime)  # type: ignore[assignment]

    def before_embeddings(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the token ids as the stack will see them: Longformer pads them to its window on the way."""
        plan = self.runtime.plan
        ids = kwargs.get("input_ids", args[0] if args else None)
        if plan is not None and plan.token_ids is not None and ids is not None:
            self.runtime.plan = replace(plan, token_ids=ids)

    def after_embeddings(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Put the rows in front of the text."""
        plan = self.runtime.plan
        if plan is None or not plan.num_rows:
            return output
        first: EntrySite = getattr(self.layers[0], NAME)
        return torch.cat([first.first_rows(plan, output), output], dim=1)

    def before_layer(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Edit what enters a layer."""
        site: EntrySite = getattr(layer, NAME)
        if args:
            return (site(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": site(kwargs["hidden_states"])}

    def after_module(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Add an adapter's vector."""
        return getattr(module, NAME)(output)

    def strip_rows(self, stack: nn.Module, args: Any, output: Any) -> Any:
        """Take the rows away again, before pooler and heads."""
        plan = self.runtime.plan
        return output if plan is None or not plan.num_rows else stripped(output, plan.num_rows)

    def after_body(self, body: nn.Module, args: Any, output: Any) -> Any:
        """Take the rows away from recorded hidden states too; end the pass."""
        plan, self.runtime.plan = self.runtime.plan, None
        if plan is None or not plan.num_rows:
            return output
        if isinstance(output, tuple):
            text = output[0].shape[1]
            return tuple(to_length(x, text) if isinstance(x, tuple) else x for x in output)
        if output.get("hidden_states") is not None:
            output["hidden_states"] = to_length(output["hidden_states"], output[0].shape[1])
        return output


def stripped(output: Any, num_rows: int) -> Any:
    """Take ``num_rows`` rows from the front of a stack's output: a tensor, a tuple, or a ModelOutput."""
    if isinstance(output, Tensor):
        return output[:, num_rows:]
    if isinstance(output, tuple):
        return (output[0][:, num_rows:], *output[1:])
    output["last_hidden_state"] = output["last_hidden_state"][:, num_rows:]
    return output


def to_length(states: tuple[Tensor, ...], length: int) -> tuple[Tensor, ...]:
    """Keep the last ``length`` rows of (B, P + N, D) states; anything else stays as it is."""
    return tuple(x[:, -length:] if x.dim() == 3 and x.shape[1] > length else x for x in states)
