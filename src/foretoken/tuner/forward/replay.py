"""Gradient checkpointing under the plan of each layer's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from foretoken.tuner.forward.mixed_batch import hook_names
from foretoken.tuner.forward.plan import Phase, Plan

if TYPE_CHECKING:
    from foretoken.tuner.forward.stack_hooks import StackHooks


class CheckpointReplay:
    """A gradient-checkpointing function that recomputes a layer under the plan of its own forward pass.

    The keys and values of rows that ran before the text go in as arguments: a checkpoint that recomputes under
    reentrant autograd passes gradients to its arguments only. In a batch of several adapters the layer's LoRA is told
    their names again: peft's own telling ends with the forward pass.
    """

    def __init__(self, checkpoint: Callable[..., Any], wired: StackHooks, layer: int) -> None:
        self.checkpoint = checkpoint
        self.wired = wired
        self.layer = layer

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Checkpoint ``function``, remembering today's plan; the short pass of the rows is not worth it."""
        plan = self.wired.plan
        if plan is not None and plan.phase is Phase.PREFIX_ONLY:
            return function(*args)
        states = () if plan is None else plan.row_states.get(self.layer, ())
        names = self.wired.model_hooks.names
        return self.checkpoint(partial(self.run, plan, names, function, len(states)), *states, *args, **kwargs)

    def run(
        self,
        plan: Plan | None,
        names: Sequence[str] | None,
        function: Callable[..., Any],
        count: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call ``function`` under the plan."""
        if plan is not None and count:
            key, value = args[:count]
            plan = replace(plan, row_states={**plan.row_states, self.layer: (key, value)})
        with self.wired.pass_state.using(plan), self.telling(names):
            return function(*args[count:], **kwargs)

    @contextmanager
    def telling(self, names: Sequence[str] | None) -> Iterator[None]:
        """Tell the layer's LoRA which document uses which adapter, where nobody else does."""
        if names is None or self.wired.model_hooks.names is not None:
            yield
            return
        inner = self.wired.layers[self.layer].modules()
        handles = [handle for module in inner if (handle := hook_names(module, list(names))) is not None]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
