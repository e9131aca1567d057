"""Adapters and models of the hub: fetched by name, and put there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from foretoken.errors import AdapterError, ConfigError, ForetokenError, cut, quoted
from foretoken.sentence_encoders import POOLING

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

FETCHED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", POOLING)  # no pickles, and nothing that runs
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


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
    except GatedRepoError as error:
        raise AdapterError(f"{name}: its owner has to give access to it on the hub first; ask there") from error
    except RepositoryNotFoundError as error:
        reason = f"is neither a folder nor on the hub; if it is private, {_LOG_IN}"
        raise AdapterError(f"{name} {reason}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        where = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else "the hub cannot be reached"
        raise AdapterError(f"{name} is not there, neither as a folder nor in the hub's cache, and {where}") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise AdapterError(f"{name} cannot be fetched from the hub: {_reason(error)}") from error


def upload(folder: Path, name: str, *, private: bool, message: str) -> str:
    """Put the files of a folder into a repository of the hub, which is made if need be; return its address.

    Raises:
        ConfigError: nobody is logged in, the name is not allowed, or the hub cannot be reached.
    """
    api = HfApi()
    with _refusals(name):
        api.whoami()
        address = api.create_repo(name, private=private or None, exist_ok=True)
        done: CommitInfo = api.upload_folder(repo_id=name, folder_path=str(folder), commit_message=message)
    return str(address or done.commit_url)


def check_name(name: str) -> None:
    """Raise a ConfigError for a name that is not ``owner/name``.

    >>> check_name("mail")
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: 'mail' is no name on the hub; expected owner/name, e.g. my-account/mail
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{quoted(name)} is no name on the hub; expected owner/name, e.g. my-account/mail")


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    """Turn whatever the hub refuses into one line."""
    try:
        yield
    except ForetokenError:
        raise
    except LocalTokenNotFoundError as error:
        raise ConfigError(f"{name}: not logged in to the hub; {_LOG_IN}") from error
    except OfflineModeIsEnabled as error:
        raise ConfigError(f"{name}: HF_HUB_OFFLINE is set; unset it to push, or look with --dry-run") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status == 401:
            raise ConfigError(f"{name}: the hub does not know the token; {_LOG_IN}") from error
        if status == 403:
            raise ConfigError(f"{name}: the account may not write there; take a token with write access") from error
        raise ConfigError(f"{name}: the hub refused: {_reason(error)}") from error
    except HFValidationError as error:
        raise ConfigError(f"{name}: {_reason(error)}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: cannot be pushed: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return cut(" ".join(str(error).split()), 200) or type(error).__name__
