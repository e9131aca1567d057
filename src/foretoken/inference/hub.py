"""Adapters and models of the hub: fetched by name, and put there."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, LocalTokenNotFoundError

from foretoken.errors import AdapterError, ConfigError, cut, quoted
from foretoken.sentence_encoders import POOLING

FETCHED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", POOLING)  # no pickles, and nothing that runs
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
        raise AdapterError(f"{name} is no folder, and cannot be fetched from the hub: {_reason(error)}") from error


def upload(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Put the files of a folder into a repository of the hub, which is made if need be; return its address.

    Raises:
        ConfigError: nobody is logged in, the name is not allowed, or the hub cannot be reached.
    """
    api = HfApi()
    try:
        api.whoami()
        address = api.create_repo(name, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=str(folder), commit_message=message)
    except LocalTokenNotFoundError as error:
        raise ConfigError(f"{name}: not logged in to the hub; log in with `hf auth login`, or set HF_TOKEN") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: cannot be pushed: {_reason(error)}") from error
    return str(address)


def check_name(name: str) -> None:
    """Raise a ConfigError for a name that is not ``owner/name``.

    >>> check_name("mail")
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: 'mail' is no name on the hub; expected owner/name, e.g. my-account/mail
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{quoted(name)} is no name on the hub; expected owner/name, e.g. my-account/mail")


def _reason(error: Exception) -> str:
    return cut(" ".join(str(error).split()), 200) or type(error).__name__
