"""What an adapter must have in common with the model and the file that it meets; checked before any weight moves."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from foretoken.errors import AdapterError, BackboneError
from foretoken.methods.base import Dimensions, ForetokenConfig
from foretoken.tuner.sites import NAME


def check_same_backbone(config: ForetokenConfig, dimensions: Dimensions) -> None:
    """Raise BackboneError where an adapter was made for another backbone, before anything is touched."""
    if config.backbone is None:
        return
    here = dimensions.fingerprint()
    differing = [
        f"{key} {config.backbone[key]} (this model: {here[key]})"
        for key in here
        if key in config.backbone and config.backbone[key] != here[key]
    ]
    if differing:
        raise BackboneError(
            f"the adapter was made for another backbone: {', '.join(differing)}; "
            f"load it on {config.base_model_name_or_path or 'the model it was trained on'}"
        )


def check_state_dict(model: nn.Module, adapter_name: str, state_dict: Mapping[str, Tensor]) -> None:
    """Raise AdapterError where a file's tensors do not fit the adapter, before any weight moves."""
    ours = re.compile(rf"\.{NAME}\.{re.escape(adapter_name)}\.")
    expected = {key: tensor for key, tensor in model.state_dict().items() if ours.search(key)}
    given = {key: tensor for key, tensor in state_dict.items() if f".{NAME}." in key}
    if missing := sorted(expected.keys() - given.keys()):
        raise AdapterError(
            f"the adapter file lacks {len(missing)} of {len(expected)} tensors, "
            f"e.g. {shown(missing[0], adapter_name)}; "
            "it is incomplete or was saved by another method: save it again or load the right folder"
        )
    if unknown := sorted(given.keys() - expected.keys()):
        raise AdapterError(
            f"the adapter file has {len(unknown)} tensors that this adapter does not have, "
            f"e.g. {shown(unknown[0], adapter_name)}; its adapter_config.json belongs to another file"
        )
    for key, tensor in expected.items():
        if tensor.shape != given[key].shape:
            raise AdapterError(
                f"{shown(key, adapter_name)} is {tuple(given[key].shape)} in the adapter file "
                f"but {tuple(tensor.shape)} by its config; the two belong to different adapters"
            )


def shown(key: str, adapter_name: str) -> str:
    """Return a parameter's name as it stands in the file."""
    return key.replace(f".{NAME}.{adapter_name}.", f".{NAME}.")
