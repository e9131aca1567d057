"""`foretoken lengthen`: turn a BERT- or RoBERTa-type model into a Longformer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretoken.limits import LONGEST_DOCUMENT
from foretoken.options import option
from foretoken_cli.console import described, say
from foretoken_cli.parser import parse


@dataclass(frozen=True)
class LengthenCommand:
    """The command line of `foretoken lengthen`."""

    source: str = option("folder or hub name of a model, or minilm (the demo weights)")
    output: Path = option("folder to write", short="-o")
    max_length: int = option("tokens it will read", 4096, at_least=1, at_most=LONGEST_DOCUMENT)
    attention_window: int = option(
        "tokens that each token sees around itself", 512, at_least=1, at_most=LONGEST_DOCUMENT
    )


def run(words: Sequence[str]) -> int:
    """Lengthen a model into a new folder and print where it is."""
    options = parse(LengthenCommand, "lengthen", words, described(__doc__))
    from foretoken.lengthening import lengthen
    from foretoken.quiet import quiet_transformers

    with quiet_transformers(bars=sys.stderr.isatty()):
        lengthen(
            options.source,
            max_length=options.max_length,
            attention_window=options.attention_window,
            output=options.output,
        )
    say(options.output)
    return 0
