"""A new adapter, or a model that is trained whole, that starts as a saved one of the same method.

Shapes: P prefix length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn

from foretoken.errors import AdapterError, quoted
from foretoken.methods import METHODS
from foretoken.methods.base import ForetokenConfig, Sites, plain
from foretoken.methods.dimensions import Dimensions
from foretoken.tuner.checkpoints.files import read_config, read_tensors
from foretoken.tuner.checks import PREFIX, check_names, check_same_backbone, check_tensor
from foretoken.tuner.dimensions import inner_of
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


def differing_options(saved: PeftConfig, config: PeftConfig) -> list[str]:
    """Return the options of the method, with both values, in which a saved adapter and a new one differ."""
    free = {item.name for item in fields(PeftConfig)} | {"requires", "id2label", "problem_type"}
    before, now = ({name: comparable(value) for name, value in one.to_dict().items()} for one in (saved, config))
    return [
        f"{name}: {quoted(before.get(name))} there, {quoted(now.get(name))} here"
        for name in {**before, **now}
        if name not in free and before.get(name) != now.get(name)
    ]


def comparable(value: Any) -> Any:
    """Return an option's value as JSON holds it, what has no order sorted."""
    if isinstance(value, set | frozenset):
        return sorted(map(comparable, value), key=str)
    return [comparable(item) for item in value] if isinstance(value, list | tuple) else plain(value)


def output_layer(model: nn.Module, num_labels: int) -> str:
    """Return the name of the last linear map of a model's head, which has a row for each label."""
    inner = inner_of(model)
    paths = [
        path.replace(".modules_to_save.default", "")
        for path, module in inner.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == num_labels and "original_module" not in path
    ]
    return paths[-1]


def take_up(model: nn.Module, given: Mapping[str, Tensor], rows: Sequence[int | None] | None) -> None:
    """Give a model, or the adapter that it has just got, the weights of a saved one, in place.

    Args:
        model: as it begins: what is not given stays.
        given: the saved tensors: of the adapter, or of the whole model.
        rows: for each label its row in the saved head; None for a label that is new, which keeps the row that it has.
            Without it the outputs have no names, and are the same.

    Raises:
        AdapterError: the tensors are not those of such a model.
    """
    is_adapter = isinstance(model, PeftModel)
    state = get_peft_model_state_dict(model, save_embedding_layers=False) if is_adapter else model.state_dict()
    check_names(state.keys() - given.keys(), given.keys() - state.keys(), len(state))
    taken = dict(given)
    if rows is not None:
        output = f"{PREFIX if is_adapter else ''}{output_layer(model, len(rows))}"
        for name in {f"{output}.weight", f"{output}.bias"} & state.keys():
            taken[name] = with_rows(state[name], given[name], rows)
    for name, tensor in taken.items():
        check_tensor(name, tensor, like=state[name])
    if is_adapter:
        set_peft_model_state_dict(model, taken)
    else:
        model.load_state_dict(taken)


def with_rows(fresh: Tensor, saved: Tensor, rows: Sequence[int | None]) -> Tensor:
    """Return a tensor with a row for each label: the saved one, or for a new label the fresh one.

    >>> with_rows(torch.zeros(3), torch.tensor([1.0, 2.0]), [1, None, 0]).tolist()
    [2.0, 0.0, 1.0]
    """
    merged = fresh.detach().cpu().clone()
    for number, row in enumerate(rows):
        if row is not None:
            merged[number] = saved[row]
    return merged
