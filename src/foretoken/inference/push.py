"""What a run has saved, as it goes to the hub: without paths of this machine, with its card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import ModelCard

from foretoken.errors import AdapterError, ConfigError
from foretoken.files import JsonObject, read_object, refuse_pickles, write_json, write_text
from foretoken.inference.hub import FETCHED, check_name, upload
from foretoken.inference.predictor import adapter_folder
from foretoken.lengthening import hub_name
from foretoken.training.baseline.tfidf import VOCABULARY
from foretoken.training.run.card import CARD
from foretoken.training.run.model_card import describe_run
from foretoken.training.run.record import FINISHED, checked_record
from foretoken.tuner.checkpoints.model_card import CARD_FILE, HERE, OWN, PREDICT

CONFIG = "adapter_config.json"
_CONFIGS = (CONFIG, CARD, "config.json", "tokenizer_config.json")
_PLACES = ("path", "train", "validation", "test", "model", "prefix_init_adapter")


def push(
    source: Path, name: str, *, private: bool = False, base_model: str | None = None, dry_run: bool = False
) -> tuple[str, dict[str, int]]:
    """Put what a run, or an adapter or model folder, holds into a repository of the hub.

    Args:
        source: folder of a finished run, of an adapter, or of a whole model.
        name: ``owner/name`` of the repository, which is made if need be.
        private: make it a private one.
        base_model: name on the hub of the model that the adapter is for; default: what it was trained with.
        dry_run: look at everything, and send nothing.

    Returns:
        The repository's address, and the bytes of every file by its name.

    Raises:
        AdapterError: there is nothing to push, or the run is not finished.
        ConfigError: the base model is a folder that nobody else has; nobody is logged in; the hub refuses.
    """
    check_name(name)
    with prepared(source, name, base_model) as folder:
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}
        if dry_run:
            return f"https://huggingface.co/{name}", sizes
        return upload(folder, name, private=private, message=f"Push {source.resolve().name} with foretoken"), sizes


@contextmanager
def prepared(source: Path, name: str, base_model: str | None) -> Iterator[Path]:
    """Give a folder with the files as they are pushed.

    Raises:
        AdapterError: there is nothing to push, or the run is not finished.
        ConfigError: the base model is a folder that nobody else has.
    """
    if not source.is_dir():
        raise AdapterError(f"{source} is not there; expected the folder of a finished run, of an adapter or of a model")
    _check_finished(source)
    saved = adapter_folder(source)
    if (saved / VOCABULARY).is_file():
        raise AdapterError(f"{source} holds a tf-idf baseline; only adapters and models can be pushed")
    if not any((saved / file).is_file() for file in (CONFIG, "config.json")):
        raise AdapterError(f"{source} holds neither an adapter ({CONFIG}) nor a model (config.json)")
    refuse_pickles(saved)
    with TemporaryDirectory() as made:
        folder = Path(made)
        for file in sorted({file for pattern in FETCHED for file in saved.glob(pattern)}):
            place = folder / file.relative_to(saved)
            place.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, place)
        base = _with_base(folder, base_model)
        _without_paths(folder, base)
        _write_card(source, saved, folder, name, base)
        yield folder


def _check_finished(source: Path) -> None:
    record = checked_record(source)
    if record is not None and record["status"] != FINISHED:
        raise AdapterError(f"{source}: the run is not finished (status: {record['status']}); `foretoken train` goes on")


def _with_base(folder: Path, base_model: str | None) -> str | None:
    """Write the name of the base model that others can load into the adapter's config, and return it."""
    file = folder / CONFIG
    if not file.is_file():
        return base_model
    values = read_object(file)
    source = str(values.get("base_model_name_or_path") or "")
    name = base_model or hub_name(source)
    if not name:
        known = f"the folder {source}, which nobody else has" if source else "not named"
        raise ConfigError(f"the base model is {known}; push it too, and name its repository with --base-model")
    write_json(file, values | {"base_model_name_or_path": name})
    return name


def _without_paths(folder: Path, base: str | None) -> None:
    """Leave of every path in the configs its last part; the base model is what others can load."""
    for name in _CONFIGS:
        if not (folder / name).is_file():
            continue
        values = _bare(read_object(folder / name))
        if name == CARD:
            recipe = values.get("recipe")
            if isinstance(recipe, dict):
                recipe.pop("output", None)
                recipe["model"] = recipe["model"] if hub_name(str(recipe.get("model"))) else base
            values["base_model"] = base
        write_json(folder / name, values)


def _bare(values: Mapping[str, Any]) -> JsonObject:
    return {key: _bare(value) if isinstance(value, dict) else _bare_value(key, value) for key, value in values.items()}


def _bare_value(key: str, value: object) -> object:
    is_place = key in _PLACES or key.endswith(("_path", "_file"))
    is_path = is_place and isinstance(value, str) and value != "" and not hub_name(value)
    return Path(str(value)).name if is_path else value


def _write_card(source: Path, saved: Path, folder: Path, name: str, base: str | None) -> None:
    """Write the card with the repository's name in it: the user's own, or that of the run or of the adapter."""
    before, record = saved / CARD_FILE, checked_record(source)
    text = before.read_text(encoding="utf-8", errors="replace") if before.is_file() else OWN
    if record is not None and OWN in text:
        text = describe_run(source, saved, record, base_model=base).card()
    try:
        card = ModelCard(text)
    except ValueError as error:
        raise AdapterError(f"{before}: the hub could not read its metadata ({error}); mend it") from error
    if base and not card.data.get("base_model"):
        card.data["base_model"] = base
    write_text(
        folder / CARD_FILE, str(card).replace(HERE, json.dumps(name)).replace(PREDICT, f"foretoken predict {name}")
    )
