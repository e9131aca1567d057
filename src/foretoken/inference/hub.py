"""Adapters and models of the hub, fetched by name."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from foretoken.errors import AdapterError, cut
from foretoken.sentence_encoders import POOLING
from foretoken.training.run.folder import VALIDATION

FETCHED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", POOLING, VALIDATION)  # nothing that runs
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def is_hub_name(place: Path) -> bool:
    """Tell whether a path that is not there may be a name on the hub: ``owner/name``, and no folder of such an owner.

    >>> is_hub_name(Path("somebody/mail")), is_hub_name(Path("/tmp/runs/mail")), is_hub_name(Path("run"))
    (True, False, False)
    """
    return _NAME.fullmatch(place.as_posix()) is not None and not place.exists() and not place.parent.exists()


def fetched(name: str) -> Path:
    """Return the folder of a repository of the hub, downloaded or from the cache.

    Raises:
        AdapterError: there is none of this name, or the hub cannot be reached and the cache does not have it.
    """
    try:
        return Path(snapshot_download(name, allow_patterns=list(FETCHED)))
    except LocalEntryNotFoundError as error:
        where = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else "the hub cannot be reached"
        raise AdapterError(f"{name} is not there, neither as a folder nor in the hub's cache, and {where}") from error
    except (OSError, ValueError) as error:
        reason = cut(" ".join(str(error).split()), 200) or type(error).__name__
        raise AdapterError(f"{name} is no folder, and cannot be fetched from the hub: {reason}") from error
