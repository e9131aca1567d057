"""`foretoken bench`: measure time and memory beside transformers and peft."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretoken.bench import BENCHMARKS
from foretoken.bench.plan import ALLOCATORS, DTYPES, Options
from foretoken.limits import MOST_DOCUMENTS, MOST_THREADS
from foretoken_cli.console import described, fail, say_lines
from foretoken_cli.parser import Parser, whole

WORKER, REPORT = "worker", "report"  # the process of one part, not for users; write a report anew


def run(arguments: Sequence[str]) -> int:
    """Run a benchmark, print its report and write it beside the results; exit code 2 if a part of it failed."""
    if list(arguments) == [WORKER]:
        from foretoken.bench.worker import main

        return main()
    options = _parser().parse_args(arguments)
    if options.benchmark == REPORT:
        return _report(options)
    from foretoken.bench.runner import failures, run_benchmark
    from foretoken.bench.show.page import present

    file, values = run_benchmark(options.benchmark, _options(options))
    say_lines(present([values], file.with_suffix("")))
    for line in failures(values):
        fail(line)
    return 2 if failures(values) else 0


def _report(options: argparse.Namespace) -> int:
    from foretoken.bench.show.page import present, read_results

    say_lines(present([read_results(file) for file in options.files], options.output / REPORT))
    return 0


def _options(options: argparse.Namespace) -> Options:
    both: dict[str, Any] = {"dtypes": DTYPES, "allocators": ALLOCATORS}
    return Options(
        quick=options.quick,
        shape=options.shape,
        layers=options.layers,
        threads=options.threads,
        dtypes=_chosen(options.dtype, both["dtypes"]),
        allocators=_chosen(options.allocator, both["allocators"]),
        rounds=options.rounds,
        output=options.output,
        device=options.device,
        batch_size=getattr(options, "batch_size", Options.batch_size),
        lengths=getattr(options, "lengths", None),
        engines=getattr(options, "engine", None) or (),
    )


def _chosen(word: str | None, both: Sequence[str]) -> Sequence[str] | None:
    return None if word is None else both if word == "both" else (word,)


def _parser() -> Parser:
    parser = Parser(prog="foretoken bench", description=described(__doc__))
    verbs = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Parser)
    for name, summary in BENCHMARKS.items():
        _add_options(verbs.add_parser(name, help=summary, description=summary), name)
    text = "write the report of one or more files of results"
    report = verbs.add_parser(REPORT, help=text, description=text)
    report.add_argument("files", nargs="+", type=Path, metavar="FILE.json", help="results of benchmarks")
    _add_output(report)
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=Options.output, help="folder to write to (default: bench)")


def _add_options(parser: argparse.ArgumentParser, name: str) -> None:
    add = parser.add_argument
    add(
        "--quick", action="store_true", help="small sizes and few rounds: under a minute, and no target is meant for it"
    )
    add("--layers", type=whole(1, 1000), help="layers of the model")
    add("--threads", type=whole(1, MOST_THREADS), help="threads of the processor (default: PyTorch's)")
    add("--dtype", choices=(*DTYPES, "both"), help="type of the model (default: the benchmark's own)")
    add(
        "--allocator", choices=(*ALLOCATORS, "both"), help="glibc's as it is, tuned, or both (default: the benchmark's)"
    )
    add("--rounds", type=whole(1, 1_000_000), help="turns of every candidate")
    add("--device", choices=("cpu", "cuda"), default=Options.device, help="where to measure (default: cpu)")
    add("--shape", choices=("base", "tiny"), default=Options.shape, help="sizes of the model; tiny tries the harness")
    _add_output(parser)
    if name == "encoder":
        add("--engine", action="append", help="put this attention engine beside the automatic one; may be repeated")
    if name == "padding":
        add(
            "--batch-size",
            type=whole(1, MOST_DOCUMENTS),
            default=Options.batch_size,
            help="documents of a batch (default: 8)",
        )
        add("--lengths", type=Path, help="text file with a document's length in every line (default: drawn)")
