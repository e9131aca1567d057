"""`foretoken lengthen`: turn a BERT- or RoBERTa-type model into a Longformer."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.limits import LONGEST_DOCUMENT
from foretoken_cli.console import described, say
from foretoken_cli.parser import Parser, whole


def run(arguments: Sequence[str]) -> int:
    """Lengthen a model into a new folder and print where it is."""
    options = _parser().parse_args(arguments)
    from foretoken.lengthening import lengthen
    from foretoken.quiet import quiet_transformers

    with quiet_transformers():
        lengthen(
            options.source,
            max_length=options.max_length,
            attention_window=options.attention_window,
            output=options.output,
        )
    say(options.output)
    return 0


def _parser() -> Parser:
    parser = Parser(prog="foretoken lengthen", description=described(__doc__))
    parser.add_argument("source", help="folder or hub name of a model, or minilm (the demo weights)")
    parser.add_argument("output", help="folder to write")
    length = whole(1, LONGEST_DOCUMENT)
    parser.add_argument("--max-length", type=length, default=4096, help="tokens it will read (default: 4096)")
    parser.add_argument(
        "--attention-window",
        type=length,
        default=512,
        help="tokens that each token sees around itself (default: 512)",
    )
    return parser
