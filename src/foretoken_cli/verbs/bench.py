"""`foretoken bench`: measure time and memory beside transformers and peft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from foretoken.bench import BENCHMARKS
from foretoken.bench.run.plan import Options
from foretoken.options import option
from foretoken_cli.console import described, fail, say_lines
from foretoken_cli.parser import Parser, collect

WORKER, REPORT = "worker", "report"  # the process of one part, not for users; write a report anew


@dataclass(frozen=True)
class ReportCommand:
    """The command line of `foretoken bench report`."""

    files: list[Path] = option("results of benchmarks", metavar="FILE.json")
    output: Path = option("folder to write to", Path("bench"))


def run(words: Sequence[str]) -> int:
    """Run a benchmark, print its report and write it beside the results; exit code 2 if a part of it failed."""
    if list(words) == [WORKER]:
        from foretoken.bench.run.worker import main

        return main()
    found = _parser().parse_args(words)
    if found.benchmark == REPORT:
        return _report(collect(ReportCommand, found))
    from foretoken.bench.run.runner import failures, run_benchmark
    from foretoken.bench.show.page import present

    file, values = run_benchmark(found.benchmark, collect(Options, found))
    say_lines(present([values], file.with_suffix("")))
    for line in failures(values):
        fail(line)
    return 2 if failures(values) else 0


def _report(options: ReportCommand) -> int:
    from foretoken.bench.show.page import present, read_results

    say_lines(present([read_results(file) for file in options.files], options.output / REPORT))
    return 0


def _parser() -> Parser:
    parser = Parser(prog="foretoken bench", description=described(__doc__))
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Parser)
    for name, summary in BENCHMARKS.items():
        others = {item.name for item in fields(Options) if item.metadata.get("only", name) != name}
        benchmarks.add_parser(name, help=summary, description=summary).add_options(Options, without=others)
    text = "write the report of one or more files of results"
    benchmarks.add_parser(REPORT, help=text, description=text).add_options(ReportCommand)
    return parser
