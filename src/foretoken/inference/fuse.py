"""A trained adapter's folder, fused: the same predictions without what only training needs."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile

import torch
from peft import PeftModel

from foretoken.errors import AdapterError, SaveError
from foretoken.files import atomic_directory
from foretoken.inference.predictor import adapter_folder, load_for_inference
from foretoken.training.tokens.new_tokens import rows_alone
from foretoken.tuner.fuse import fuse


def fuse_folder(source: Path, output: Path, *, dtype: torch.dtype) -> None:
    """Fuse the adapter of a run or an adapter folder into a new folder, which ``predict`` and peft read alike.

    Raises:
        AdapterError: there is no adapter, or nothing in it to fuse.
        SaveError: ``output`` exists, or cannot be written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise SaveError(f"{output} already exists and is not an empty folder; remove it or choose another name")
    classifier = load_for_inference(source)
    if not isinstance(classifier.model, PeftModel):
        raise AdapterError(f"{source} holds a whole model, not an adapter; there is nothing to fuse")
    with atomic_directory(output) as temporary:
        for file in adapter_folder(source).iterdir():
            if file.is_file() and not file.name.startswith("adapter_"):
                copyfile(file, temporary / file.name)
        fuse(classifier.model, temporary, dtype=dtype)
        with rows_alone(classifier.model):
            classifier.model.save_pretrained(str(temporary))
