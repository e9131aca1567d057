"""`foretoken.export`: a trained adapter with its head, tokenizer and recalibration as one folder for other runtimes."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from foretoken import left
from foretoken.errors import ConfigError, no_such, quoted
from foretoken.exporting.onnx_file import check_installed
from foretoken.exporting.shared import export_shared
from foretoken.exporting.single import FILES, Target, export_one, load_for_export
from foretoken.files import PathLike, atomic_directory
from foretoken.outputs import check_new_folder

log = logging.getLogger(__name__)


def export(
    source: PathLike | Sequence[PathLike],
    output: PathLike,
    *,
    to: Target = "onnx",
    shared: bool = False,
    int8: bool = False,
    base_model: str | None = None,
    accept_changed: bool = False,
) -> float:
    """Write a trained model as a folder that runs without foretoken, peft and transformers.

    The folder holds the graph for any number and length of documents, the head, ``tokenizer.json``, ``config.json``
    (labels, lengths, chunks, recalibration), ``read.py``, which reads and answers with numpy, and a ``README.md``.

    Args:
        source: a run, adapter or model folder; with ``shared`` several of them.
        output: the folder to write; it must not exist, or be empty.
        to: ``onnx`` for onnxruntime, ``torch`` for PyTorch alone.
        shared: write one graph of the backbone and one small file for each adapter; ONNX only.
        int8: keep the weights of matrix products in 8 bits; ONNX only.
        base_model: where the pretrained model of an adapter is, in place of what its folder says.
        accept_changed: export an adapter though its pretrained model is not the one that it was trained on.

    Returns:
        How far the outputs are at most from the model's, on documents of other sizes than the graph was made from.

    Raises:
        AdapterError: the run is not finished, or its files are damaged.
        BackboneError: there is no such graph of the model, or its outputs are others than the model's.
        ConfigError: options that do not go together, or a missing package.
        SaveError: ``output`` is not empty, or cannot be written.

    >>> export("runs/mail", "exported", to="torch", int8=True)
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: int8 is for ONNX, not for torch; leave it out, or export to onnx
    """
    folder = Path(output)
    sources = [Path(item) for item in ([source] if isinstance(source, str | os.PathLike) else source)]
    check_options(sources, to, shared=shared, int8=int8)
    check_new_folder(folder, sources)
    load = partial(load_for_export, base_model=base_model, accept_changed=accept_changed)
    with atomic_directory(folder) as temporary:
        if shared:
            difference = export_shared(sources, temporary, load)
        else:
            difference = export_one(load(sources[0]), temporary, to, int8=int8)
    log.info("%s: outputs at most %.1e from the model's", folder, difference)
    return difference


def check_options(sources: Sequence[Path], to: str, *, shared: bool, int8: bool) -> None:
    """Raise ConfigError for options that do not go together, before anything is loaded."""
    if to not in FILES:
        gone = left.gone(f"to: {to}", left.VALUES)
        raise ConfigError(f"to: {quoted(to)} {gone}" if gone else no_such("target", to, FILES))
    for name, given in (("int8", int8), ("shared", shared)):
        if given and to != "onnx":
            raise ConfigError(f"{name} is for ONNX, not for {to}; leave it out, or export to onnx")
    if shared and int8:
        raise ConfigError("int8 is for a folder of one adapter; leave out int8 or shared")
    if not sources or (len(sources) > 1 and not shared):
        raise ConfigError(f"got {len(sources)} folders, expected one, or several with shared (--shared)")
    check_installed(to)
