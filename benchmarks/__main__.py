"""Measure time and memory beside transformers and peft; see benchmarks/README.md.

python -m benchmarks NAME [--tiny] [--dtype bfloat16] [--part TEXT] [--output FILE.json]
python -m benchmarks targets [FILE.json ...]
"""

import argparse
import sys
from datetime import datetime
from pathlib import Path

from benchmarks.suite.runner import NAMES, Options, failures, run
from benchmarks.suite.tables import RESULTS, read, table_of, targets_table


def main(words: list[str] | None = None) -> int:
    """Run a benchmark and print its table, or print the targets; exit code 2 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in NAMES.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--tiny", action="store_true", help="tiny models, one round: tries the suite")
        command.add_argument("--layers", type=int, help="of the model (default: the benchmark's)")
        command.add_argument("--threads", type=int, help="of the processor (default: PyTorch's)")
        command.add_argument("--dtype", action="append", choices=["float32", "bfloat16"], help="may be repeated")
        command.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
        command.add_argument("--rounds", type=int, help="turns of every candidate (default: the part's)")
        command.add_argument("--part", action="append", help="only the parts with this in their title")
        command.add_argument("--output", type=Path, help="default: bench/NAME-TIME.json")
    shown = commands.add_parser("targets", help="which targets results reach")
    shown.add_argument("files", nargs="*", type=Path, default=sorted(RESULTS.glob("bench-*.json")))
    found = vars(parser.parse_args(words))
    command = found.pop("command")
    if command == "targets":
        print(targets_table([read(file) for file in found["files"]]))
        return 0
    output = found.pop("output") or Path("bench") / f"{command}-{datetime.now():%Y%m%d-%H%M%S}.json"
    values = run(command, Options(**found), output)
    print(table_of(values), targets_table([values], command), sep="\n")
    for line in failures(values):
        print(line, file=sys.stderr)
    return 2 if failures(values) else 0


if __name__ == "__main__":
    sys.exit(main())
