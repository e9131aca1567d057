"""Where sites are put, and the hooks that call them: one :class:`Wiring` per model.

Shapes: B batch, N text tokens, P rows in front of the text, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn

from foretoken.backbones.base import PORT, Attention, Backbone, Stack
from foretoken.errors import AdapterError
from foretoken.methods.base import ForetokenConfig, Sites
from foretoken.methods.dimensions import Dimensions, Place
from foretoken.tuner.auxiliary import summed
from foretoken.tuner.dimensions import body_of
from foretoken.tuner.forward import ThroughHooks, follow_class
from foretoken.tuner.passes import StackWiring
from foretoken.tuner.port import Port
from foretoken.tuner.sites import NAME, EntrySite, OutputSite, Site, site_class

WIRING = "_foretoken_wiring"
FAST = "_foretoken_fast"  # where a model that was sped up without an adapter keeps its hooks


@dataclass(frozen=True)
class Target:
    """Where a method's module goes: the module that carries the site, and for an edit where its output is."""

    holder: nn.Module
    stack: int
    output: nn.Module | None = None
    width: int | None = None


class Wiring:
    """The sites and hooks of one model, and how to take them off again."""

    def __init__(self, body: nn.Module, backbone: Backbone, dimensions: Dimensions) -> None:
        self.body = body
        self.backbone = backbone
        self.dimensions = dimensions
        self.names: Sequence[str] | None = None
        self.sites: list[Site] = []
        self.built: dict[str, tuple[ForetokenConfig, Sites]] = {}
        self.targets: list[nn.Module] = []
        self.stacks = [StackWiring(self, stack) for stack in backbone.stacks_of(body)]
        self.handles = [handle for place in backbone.attentions(body) for handle in self.open_port(*place)]
        follow_class(body)
        backbone.attach_attention(body, backbone.attention_modules(body))
        self.forward = ThroughHooks(body)

    def stay_attached(self) -> None:
        """Attach again where the user has chosen another attention implementation since.

        Raises:
            BackboneError: one that takes no masks.
        """
        if not self.backbone.is_attached(self.body):
            self.backbone.dimensions(self.body.config)
            self.backbone.attach_attention(self.body, self.backbone.attention_modules(self.body))

    def open_port(self, stack: Stack, attention: Attention, layer: nn.Module) -> list[Any]:
        """Give one attention its port, and let its output projection add what the port delivers."""
        wired = next(wired for wired in self.stacks if wired.stack is stack)
        module = layer.get_submodule(attention.module)
        port = Port(module, wired.runtime, wired.layers.index(layer), is_cross=attention is stack.cross)
        handles: list[Any] = [layer.get_submodule(attention.output).register_forward_hook(port.after_projection)]
        if attention.is_rotary:
            handles.append(module.register_forward_pre_hook(port.note_rotation, with_kwargs=True))
        return handles

    def target(self, key: int | str | Place, module: nn.Module) -> Target:
        """Return where a method's module goes.

        Raises:
            BackboneError: this model has no such place.
        """
        if isinstance(key, str):
            found = self.body.get_submodule(key)
            return Target(found, self.stack_of(found), found)
        if isinstance(key, Place):
            return self.place(key)
        if site_class(module) is EntrySite:
            layer = self.backbone.layer_modules(self.body)[key]
            return Target(layer, self.stack_of(layer))
        attention = self.backbone.attention_modules(self.body)[key]
        return Target(attention, self.stack_of(attention))

    def place(self, place: Place) -> Target:
        """Return where a named place of the family is."""
        if place.kind == "feed_forward":
            layer = self.backbone.layer_modules(self.body)[place.index]
            number = self.stack_of(layer)
            first, last = self.stacks[number].stack.feed_forward
            return Target(layer.get_submodule(first), number, layer.get_submodule(last))
        _, attention, layer = self.backbone.attentions(self.body)[place.index]
        path = attention.output if place.kind == "attention" else attention.query[place.part]
        found = layer.get_submodule(path)
        shape = self.dimensions.attentions[place.index]
        width = shape.num_heads * shape.head_dim if place.kind == "query" else None
        return Target(found, self.stack_of(layer), found, width)

    def stack_of(self, module: nn.Module) -> int:
        """Return the number of the stack that a module belongs to; what lies outside of all goes with the first."""
        return next((number for number, wired in enumerate(self.stacks) if id(module) in wired.inner), 0)

    def attach(self, target: Target, module: nn.Module, adapter: str) -> None:
        """Put an adapter's module where it belongs.

        Raises:
            AdapterError: an earlier adapter edits another output there.
        """
        site = getattr(target.holder, NAME, None)
        if site is None:
            site = self.new_site(target, module)
        elif site.output is not target.output:
            raise AdapterError(
                f"adapter {adapter!r} and an earlier one edit different outputs at one module of this model; "
                f"attach {adapter!r} to another copy of the model, or unload() the earlier ones first"
            )
        site[adapter] = module

    def new_site(self, target: Target, module: nn.Module) -> Site:
        """Register a site and the hooks that call it."""
        wired = self.stacks[target.stack]
        site = site_class(module)(wired.runtime)
        site.__dict__["output"] = target.output
        target.holder.add_module(NAME, site)
        self.sites.append(site)
        self.targets.append(target.holder)
        if isinstance(site, EntrySite):
            site.is_first = target.holder is wired.layers[0]
            hook = BeforeLayer(site)
            self.handles.append(target.holder.register_forward_pre_hook(hook, with_kwargs=True))
        elif isinstance(site, OutputSite) and target.output is not None:
            edit = AroundModule(site, target.width)
            self.handles.append(target.holder.register_forward_pre_hook(edit.before, with_kwargs=True))
            self.handles.append(target.output.register_forward_hook(edit.after))
        return site

    def at_work(self) -> list[str]:
        """Return the adapters that act: those that the documents of the pass name, or the active ones."""
        site = next((site for site in self.sites if len(site)), None)
        if site is None or site.disable_adapters:
            return []
        return list(dict.fromkeys(self.names or site.active_adapters))

    def auxiliary_loss(self) -> Tensor | None:
        """Return what the adapters at work add to the task's loss in training; None for nothing."""
        built = [self.built[name] for name in self.at_work() if name in self.built]
        return summed(config.auxiliary_loss(sites) for config, sites in built)

    def remove(self) -> None:
        """Give back the model as it was."""
        self.forward.remove()
        for handle in [*self.handles, *(handle for wired in self.stacks for handle in wired.handles)]:
            handle.remove()
        for wired in self.stacks:
            wired.forget_checkpoints()
        for target in self.targets:
            delattr(target, NAME)
        attentions = self.backbone.attention_modules(self.body)
        for attention in attentions:
            attention.__dict__.pop(PORT, None)
        if FAST not in self.body.__dict__:
            self.backbone.detach_attention(self.body, attentions)


def find_wiring(model: nn.Module) -> Wiring | None:
    """Return the wiring of a model; None for one without an adapter of foretoken's."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    return body_of(base).__dict__.get(WIRING)


class BeforeLayer:
    """A pre-hook that edits what enters a layer."""

    def __init__(self, site: EntrySite) -> None:
        self.site = site

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Edit the hidden states, however they are passed."""
        if args:
            return (self.site(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self.site(kwargs["hidden_states"])}


class AroundModule:
    """Hooks that edit a module's output with its input, or another module's input, at hand."""

    def __init__(self, site: OutputSite, width: int | None) -> None:
        self.site = site
        self.width = width
        self.given: Tensor | None = None

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the input."""
        self.given = args[0] if args else next(iter(kwargs.values()))

    def after(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Edit the output, or the part of it that is the query's."""
        given, self.given = self.given, None
        assert given is not None
        if self.width is None or self.width == output.shape[-1]:
            return self.site(output, given)
        query, rest = output[..., : self.width], output[..., self.width :]
        return torch.cat([self.site(query, given), rest], dim=-1)
