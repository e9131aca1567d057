"""Where a saved adapter or model is: in a run's folder, in one of its own, or on the hub."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from foretoken.errors import AdapterError, cut
from foretoken.lengthening import DEMO_MODEL, resolve_source
from foretoken.saved_files import readable_object
from foretoken.sentence_encoders import POOLING
from foretoken.training.run_folder import RECORD, SAVED, VALIDATION

FETCHED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", POOLING, VALIDATION)  # no code, no pickles
EXPECTED = "expected a folder with adapter_config.json (adapter), run.json (run) or config.json (model)"
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def adapter_folder(folder: Path) -> Path:
    """Return the folder of a saved model: of a run, the one within it; of a hub name, ``owner/name``, the download.

    Raises:
        AdapterError: it is neither a folder nor on the hub, or a run without a saved model.
    """
    if str(folder) == DEMO_MODEL and not folder.exists():
        return Path(resolve_source(str(folder)))
    if is_hub_name(folder):
        return fetched(folder.as_posix())
    if not folder.is_dir():
        raise AdapterError(f"{folder} is {'a file' if folder.exists() else 'not there'}; {EXPECTED}")
    if not (folder / RECORD).is_file():
        return folder
    for name in SAVED:
        if (folder / name).is_dir():
            return folder / name
    status = (readable_object(folder / RECORD) or {}).get("status", "unreadable")
    raise AdapterError(
        f"{folder}: the run has saved no adapter yet (status: {status}); finish it with `foretoken train`"
    )


def is_hub_name(path: Path) -> bool:
    """Tell whether a path may be a name on the hub: ``owner/name``, and no folder is called like the owner.

    >>> is_hub_name(Path("somebody/mail")), is_hub_name(Path("/tmp/runs/mail")), is_hub_name(Path("run"))
    (True, False, False)
    """
    return _NAME.fullmatch(path.as_posix()) is not None and not path.exists() and not path.parent.exists()


def fetched(name: str) -> Path:
    """Return the folder of a repository on the hub, downloaded or from the cache.

    Raises:
        AdapterError: it does not exist, or the hub cannot be reached and the cache lacks it.
    """
    try:
        return Path(snapshot_download(name, allow_patterns=list(FETCHED)))
    except LocalEntryNotFoundError as error:
        where = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else "the hub cannot be reached"
        raise AdapterError(f"{name} is not there, neither as a folder nor in the hub's cache, and {where}") from error
    except (OSError, ValueError) as error:
        reason = cut(" ".join(str(error).split()), 200) or type(error).__name__
        raise AdapterError(f"{name} is no folder, and cannot be fetched from the hub: {reason}") from error
