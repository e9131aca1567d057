"""`foretoken report`: write one report of all runs in some folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foretoken_cli.console import described, say
from foretoken_cli.parser import Parser


def run(arguments: Sequence[str]) -> int:
    """Write the report, print its summary and where it is."""
    options = _parser().parse_args(arguments)
    from foretoken.report.write import PAGE, write_report

    report = write_report(options.folders, options.output)
    for line in [*report.summary, *report.warnings]:
        say(line)
    say()
    say(options.output / PAGE)
    return 0


def _parser() -> Parser:
    parser = Parser(prog="foretoken report", description=described(__doc__))
    parser.add_argument("folders", nargs="+", type=Path, help="folders that hold runs, at any depth")
    parser.add_argument("-o", "--output", type=Path, default=Path("report"), help="folder to write (default: report)")
    return parser
