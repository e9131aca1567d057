"""`foretoken fuse`: fold away what an adapter needs in training only."""

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
class FuseCommand(BaseModelOptions):
    """The command line of `foretoken fuse`."""

    source: Path = option("a run folder or an adapter folder")
    output: Path = option("folder to write", short="-o")
    dtype: Literal["float16", "bfloat16", "float32"] = option("type of a table", "float16")


def run(words: Sequence[str]) -> int:
    """Fuse an adapter into a new folder and print where it is."""
    epilog = "Projected prefixes become plain ones; AoT P-tuning becomes a table that is looked up in a file."
    options = parse(FuseCommand, "fuse", words, described(__doc__), epilog=epilog)
    import torch

    from foretoken.inference.fuse import fuse_folder

    fuse_folder(
        options.source,
        options.output,
        dtype=getattr(torch, options.dtype),
        base_model=options.base_model,
        accept_changed=options.accept_changed,
    )
    say(options.output)
    return 0
