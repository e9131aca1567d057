"""`foretoken fuse`: fold away what an adapter needs in training only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foretoken_cli.console import described, say
from foretoken_cli.parser import Parser

DTYPES = ("float16", "bfloat16", "float32")  # as torch calls them


def run(arguments: Sequence[str]) -> int:
    """Fuse an adapter into a new folder and print where it is."""
    options = _parser().parse_args(arguments)
    import torch

    from foretoken.inference.fuse import fuse_folder

    fuse_folder(Path(options.source), Path(options.output), dtype=getattr(torch, options.dtype))
    say(options.output)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="foretoken fuse",
        description=described(__doc__),
        epilog="Projected prefixes become plain ones; AoT P-tuning becomes a table that is looked up in a file.",
    )
    parser.add_argument("source", help="a run folder or an adapter folder")
    parser.add_argument("output", help="folder to write")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="type of a table (default: float16)")
    return parser
