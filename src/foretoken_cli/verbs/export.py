"""`foretoken export`: write a trained model as a folder that runs without foretoken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretoken.options import option
from foretoken_cli.console import described, say
from foretoken_cli.inference import BaseModelOptions
from foretoken_cli.parser import parse


@dataclass(frozen=True)
class ExportCommand(BaseModelOptions):
    """The command line of `foretoken export`."""

    source: list[Path] = option("a run, adapter or model folder; with --shared one or more")
    to: Literal["onnx", "torch"] = option("what runs it", "onnx")
    output: Path | None = option(
        "folder to write (default: the name of the first source, and what runs it)", None, short="-o"
    )
    shared: bool = option("one graph of the backbone, and one small file for each adapter; ONNX only", False)
    int8: bool = option("keep the weights of matrix products in 8 bits; ONNX only", False)


def run(words: Sequence[str]) -> int:
    """Export a model, or several adapters of one backbone, into a new folder and print where it is."""
    epilog = "The folder needs onnxruntime and tokenizers alone; its README.md has the lines of Python."
    options = parse(ExportCommand, "export", words, described(__doc__), epilog=epilog)
    output = options.output or Path(f"{options.source[0].resolve().name}-{options.to}")
    from foretoken.exporting.export import export

    export(
        options.source,
        output,
        to=options.to,
        shared=options.shared,
        int8=options.int8,
        base_model=options.base_model,
        accept_changed=options.accept_changed,
    )
    say(output)
    return 0
