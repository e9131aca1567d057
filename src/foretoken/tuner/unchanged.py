"""All or nothing: a model is as it was before where attaching or loading an adapter fails half way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from peft.tuners.tuners_utils import BaseTuner
from torch import nn

from foretoken.tuner.model_hooks import ModelHooks


@contextmanager
def unchanged_on_error(model: nn.Module) -> Iterator[None]:
    """Leave a model with the modules, hooks, adapters and gradient flags that it had, where what is done to it fails.

    Values of parameters are no part of it: what fails has only made new ones.
    """
    owners = list(stateful_objects(model))
    snapshots = [Snapshot(owner) for owner in owners]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    except BaseException:
        for model_hooks in [owner for owner in stateful_objects(model) if isinstance(owner, ModelHooks)]:
            if model_hooks not in owners:
                model_hooks.remove()  # what lies outside the model: transformers' choice of attention
        for snapshot in snapshots:
            snapshot.restore()
        for parameter, is_trained in trained:
            parameter.requires_grad_(is_trained)
        raise


class Snapshot:
    """The class and the attributes of one object, and what its dictionaries, lists and sets held."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.kind = type(owner)
        self.attributes = dict(vars(owner))
        held = (value for value in self.attributes.values() if isinstance(value, (dict, list, set)))
        # most are a module's hooks, and empty
        self.held = [(value, (dict if isinstance(value, dict) else list)(value) if value else ()) for value in held]

    def restore(self) -> None:
        """Give all of it back. Dictionaries stay the same objects, as handles of hooks know theirs."""
        self.owner.__class__ = self.kind
        vars(self.owner).clear()
        vars(self.owner).update(self.attributes)
        for value, before in self.held:
            value.clear()
            if isinstance(value, list):
                value.extend(before)
            else:
                value.update(before)


def stateful_objects(model: nn.Module) -> Iterable[object]:
    """Yield the modules of a model, and what they hold that is no submodule: ModelHooks, and tuners of LoRA."""
    for module in model.modules():
        yield module
        yield from (value for value in vars(module).values() if is_stateful(type(value)))  # type: ignore[arg-type] # classes are hashable


@cache  # asking the abstract class BaseTuner of every attribute takes as long as all else here
def is_stateful(kind: type) -> bool:
    """Tell whether objects of a class have state that attaching changes."""
    return issubclass(kind, ModelHooks | BaseTuner)
