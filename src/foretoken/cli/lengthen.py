"""`foretoken lengthen`: turn a BERT- or RoBERTa-type model into a Longformer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from foretoken.cli.console import described


def run(arguments: Sequence[str]) -> int:
    """Lengthen a model into a new folder and print where it is."""
    options = _parser().parse_args(arguments)
    from foretoken.lengthening import lengthen
    from foretoken.training.model import quiet_transformers

    with quiet_transformers():
        lengthen(
            options.source,
            max_length=options.max_length,
            attention_window=options.attention_window,
            output=options.output,
        )
    print(options.output)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="foretoken lengthen", description=described(__doc__), allow_abbrev=False)
    parser.add_argument("source", help="folder or hub name of a model, or minilm (the demo weights)")
    parser.add_argument("output", help="folder to write")
    parser.add_argument("--max-length", type=int, default=4096, help="tokens it will read (default: 4096)")
    parser.add_argument(
        "--attention-window",
        type=int,
        default=512,
        help="tokens that each token sees around itself (default: 512)",
    )
    return parser
