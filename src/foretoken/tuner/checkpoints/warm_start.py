"""A new adapter that starts as a saved one of the same method.

Shapes: P prefix length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from foretoken.errors import AdapterError
from foretoken.methods import METHODS
from foretoken.methods.base import ForetokenConfig, Sites
from foretoken.methods.dimensions import Dimensions
from foretoken.tuner.checkpoints.files import read_config, read_tensors
from foretoken.tuner.checks import check_same_backbone
from foretoken.tuner.forward.model_hooks import ModelHooks
from foretoken.tuner.forward.sites import NAME


@dataclass(frozen=True)
class SavedAdapter:
    """The tensors of a saved adapter by their names below the body, and the length of its prefix."""

    source: str
    tensors: Mapping[str, Tensor]
    length: int


def saved_adapter(config: ForetokenConfig, source: str, body: nn.Module, dimensions: Dimensions) -> SavedAdapter:
    """Return the tensors of the adapter that a new one of the same method starts from.

    Raises:
        AdapterError: there is no such adapter, or it is of another method.
        BackboneError: it was made for another backbone.
    """
    saved = saved_config(source, config)
    start = saved.prefix_start()
    assert start is not None
    check_same_backbone(saved, dimensions)
    given = read_tensors(source).items()
    tensors = {name_in_body(body, key): tensor for key, tensor in given if f"{NAME}." in key}
    return SavedAdapter(source, tensors, start.length)


def name_in_body(body: nn.Module, key: str) -> str:
    """Return a tensor's name in a file, as seen from the body: models of several tasks have the same body."""
    return key.removeprefix("base_model.model.").removeprefix(f"{body.base_model_prefix}.")


def copy_adapter(saved: SavedAdapter, length: int, sites: Sites, model_hooks: ModelHooks) -> None:
    """Copy every tensor of a saved adapter of the same method; prefixes are repeated or cut to the new length.

    Raises:
        AdapterError: the two adapters' options differ.
    """
    wanted = dict(named_parameters(sites, model_hooks))
    if differing := sorted(wanted.keys() ^ saved.tensors.keys()):
        raise AdapterError(
            f"{saved.source} and the new adapter differ by {len(differing)} tensors, e.g. {differing[0]}; "
            "give both the same options"
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            given, label = saved.tensors[name], f"{saved.source}: {name}"
            parameter.copy_(fitted(given, parameter.shape, saved.length, length, name=label))


def saved_config(source: str, config: ForetokenConfig) -> ForetokenConfig:
    """Return the config of a saved adapter of the same method as ``config``.

    Raises:
        AdapterError: it is of another method.
    """
    saved = read_config(source)
    if saved["peft_type"] != config.method_type:
        name = next((m.name for m in METHODS.values() if isinstance(config, m.config or int)), config.method_type)
        raise AdapterError(f"{source} is not an adapter of {name}; a prefix starts from one of its own method")
    known = {item.name for item in fields(config) if item.init}
    return type(config)(**{name: value for name, value in saved.items() if name in known})


def fitted(x: Tensor, shape: Sequence[int], length: int, wanted: int, *, name: str) -> Tensor:
    """Return a tensor in this shape, the vectors of a prefix repeated or cut.

    Raises:
        AdapterError: the shapes differ in anything else.

    >>> fitted(torch.tensor([[1.0], [2.0]]), (3, 1), 2, 3, name="prefix").tolist()
    [[1.0], [2.0], [1.0]]
    """
    if tuple(x.shape) == tuple(shape):
        return x
    if (x.shape[0], shape[0]) == (length, wanted) and tuple(x.shape[1:]) == tuple(shape[1:]):
        return x[torch.arange(wanted) % length]
    raise AdapterError(f"{name} is {tuple(x.shape)}; the new adapter has {tuple(shape)} there: their options differ")


def named_parameters(sites: Sites, model_hooks: ModelHooks) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of one method as they are called in a file, below the body."""
    paths = {module: path for path, module in model_hooks.body.named_modules()}
    for key, module in sites.items():
        path = paths[model_hooks.target(key, module).holder]
        for name, parameter in module.named_parameters():
            yield f"{path}.{NAME}.{name}", parameter
