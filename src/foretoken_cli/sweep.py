"""`foretoken sweep`: run a comparison: search, choose by validation, measure the test once."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from foretoken.errors import ConfigError, ForetokenError
from foretoken_cli.console import described, fail, say, table
from foretoken_cli.parser import Parser, whole

if TYPE_CHECKING:
    from foretoken.sweeps.plan import Plan
    from foretoken.sweeps.status import Standing
    from foretoken.sweeps.sweep import Sweep

log = logging.getLogger(__name__)
MOST_WORKERS = 256  # each is a process with PyTorch in it
_EPILOG = """
Any key of the base recipe can be set after the file, and wins over it:
  foretoken sweep sweep.yaml --training.epochs 3

The same command, given again anywhere with the same storage, joins in; after a kill or Ctrl-C it goes on.
"""


class CrewError(ForetokenError, RuntimeError):
    """The worker processes ended before the sweep did."""


def run(arguments: Sequence[str]) -> int:
    """Run a sweep; exit code 2 if any of its runs failed."""
    options, overrides = _parser().parse_known_args(arguments)
    _refuse_launchers()
    from foretoken.sweeps.plan import load_plan

    plan = load_plan(options.file, overrides, storage=options.storage, output=options.output)
    if options.dry_run:
        _print_plan(plan)
        return 0
    from foretoken.sweeps.database import Database
    from foretoken.sweeps.sweep import Sweep

    database = Database(plan.file.database)
    try:
        return _run(Sweep(plan, database), options, arguments)
    finally:
        database.close()


def _run(sweep: Sweep, options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if options.as_worker:
        _work(sweep, options)
        return 0
    if options.retry_failed:
        sweep.retry_broken()
    try:
        _work_here(sweep, options) if options.workers == 1 else _work_in_processes(sweep, options, arguments)
    except KeyboardInterrupt:
        _print_result(sweep)
        fail("interrupted; what was done is kept, and the same command goes on")
        return 130
    _print_result(sweep)
    return 2 if _say_failures(sweep) else 0


def _work_here(sweep: Sweep, options: argparse.Namespace) -> None:
    from foretoken.sweeps.record import Record
    from foretoken.sweeps.show import Show
    from foretoken.sweeps.worker import Worker

    record = Record(sweep.plan, sweep.board.database.place)
    with Show() as show:

        def publish(found: Sequence[Standing]) -> None:
            record.write(found)
            show.update(found)

        Worker(sweep, publish, accept_changed=options.accept_changed).work()


def _work_in_processes(sweep: Sweep, options: argparse.Namespace, arguments: Sequence[str]) -> None:
    from foretoken.sweeps.local_workers import run_crew
    from foretoken.sweeps.record import Record
    from foretoken.sweeps.show import Show
    from foretoken.sweeps.status import is_over

    with Show() as show:
        show.update(sweep.look())
        command = [word for word in arguments if word != "--retry-failed"]
        logs = sweep.plan.file.folder / "workers"
        bad = run_crew(command, options.workers, logs, lambda: show.update(sweep.look()))
    found = sweep.look()
    Record(sweep.plan, sweep.board.database.place).write(found)
    if bad and not is_over(found):
        raise CrewError(f"{bad}; the same command goes on")
    if bad:
        log.warning("%s; the others did its work", bad)


def _work(sweep: Sweep, options: argparse.Namespace) -> None:
    """Work for a parent that shows and prints; stop when it is gone, as nobody could stop us then."""
    from foretoken.sweeps.heartbeat import Parent
    from foretoken.sweeps.record import Record
    from foretoken.sweeps.worker import Worker

    parent, record = Parent(), Record(sweep.plan, sweep.board.database.place)

    def publish(found: Sequence[Standing]) -> None:
        if parent.is_gone:
            import _thread

            _thread.interrupt_main()
        record.write(found)

    Worker(sweep, publish, accept_changed=options.accept_changed).work()


def _print_result(sweep: Sweep) -> None:
    from foretoken.sweeps.record import FILE
    from foretoken.sweeps.tables import RESULT, result_rows

    table(RESULT, result_rows(sweep.latest))
    say()
    say(f"all candidates and scores: {sweep.plan.file.folder / FILE}")


def _say_failures(sweep: Sweep) -> bool:
    from foretoken.sweeps.status import broken
    from foretoken.sweeps.tables import broken_lines

    rows = broken(sweep.latest)
    if rows:
        lines = "\n  ".join(broken_lines(rows))
        fail(f"{len(rows)} runs failed; --retry-failed runs them again\n  {lines}")
    return bool(rows)


def _print_plan(plan: Plan) -> None:
    from foretoken.sweeps.candidates import number_of_candidates
    from foretoken.sweeps.tables import PLANNED, planned_rows

    sizes = {item.name: number_of_candidates(item, plan.file.search) for item in plan.contestants}
    rows = planned_rows(plan, sizes)
    table(PLANNED, rows)
    search, after = (sum(int(row[column]) for row in rows) for column in (3, 4))
    say()
    say(f"{search + after} runs: {search} of the search, {after} of the candidates it selects; nothing was run")


def _refuse_launchers() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a sweep shares its runs out itself; start it without torchrun or accelerate launch")


def _parser() -> Parser:
    parser = Parser(
        prog="foretoken sweep",
        usage="foretoken sweep FILE [--workers N] [--storage URL] [--dry-run] [--retry-failed] [--accept-changed] "
        "[--KEY VALUE ...]",
        description=described(__doc__),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="sweep file (YAML)")
    add(
        "--workers",
        type=whole(1, MOST_WORKERS),
        default=1,
        metavar="N",
        help="processes on this machine (default: this one)",
    )
    add("--storage", metavar="URL", help="database, in place of the file's: sqlite:///FILE or postgresql://...")
    add("--output", metavar="FOLDER", help="folder that holds the sweeps, in place of the file's")
    add("--dry-run", action="store_true", help="print what would run, and run nothing")
    add("--retry-failed", action="store_true", help="run again what failed before")
    add(
        "--accept-changed",
        action="store_true",
        help="go on with killed runs though data, model or versions have changed",
    )
    add("--as-worker", action="store_true", help=argparse.SUPPRESS)
    return parser
