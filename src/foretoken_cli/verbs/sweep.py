"""`foretoken sweep`: run a comparison: search, choose by validation, measure the test once."""

from __future__ import annotations

import _thread
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretoken.errors import ConfigError, ForetokenError
from foretoken.options import option
from foretoken.processes import num_processes
from foretoken_cli.console import described, fail, say, table
from foretoken_cli.parser import parse_known

if TYPE_CHECKING:
    from foretoken.sweeps.plan import SweepPlan
    from foretoken.sweeps.status import VariantStatus
    from foretoken.sweeps.sweep import Sweep

log = logging.getLogger(__name__)
MOST_WORKERS = 256  # each is a process with PyTorch in it
_EPILOG = """
Any key of the base recipe can be set after the file, and wins over it:
  foretoken sweep sweep.yaml --training.epochs 3

The same command, given again anywhere with the same storage, joins in; after a kill or Ctrl-C it goes on.
"""


class WorkersError(ForetokenError, RuntimeError):
    """The worker processes ended before the sweep did."""


@dataclass(frozen=True)
class SweepCommand:
    """The command line of `foretoken sweep`; keys of the recipe stand among its flags."""

    file: str = option("sweep file (YAML)", metavar="FILE")
    workers: int = option("processes on this machine", 1, metavar="N", at_least=1, at_most=MOST_WORKERS)
    storage: str | None = option(
        "database, in place of the file's: sqlite:///FILE or postgresql://...", None, metavar="URL"
    )
    output: str | None = option("folder that holds the sweeps, in place of the file's", None, metavar="FOLDER")
    dry_run: bool = option("print what would run, and run nothing", False)
    smoke: bool = option(
        "run every variant and every searched value for one step on a tiny random model with few documents, made up "
        "where the data are not there, and write a report; nothing of the sweep itself runs",
        False,
    )
    retry_failed: bool = option("run again what failed before", False)
    accept_changed: bool = option("go on with killed runs though data, model or versions have changed", False)
    as_worker: bool = option("a process that another one started with --workers", False, hidden=True)


def run(words: Sequence[str]) -> int:
    """Run a sweep; exit code 2 if any of its runs failed."""
    options, overrides = parse_known(
        SweepCommand,
        "sweep",
        words,
        described(__doc__),
        usage="foretoken sweep FILE [--workers N] [--storage URL] [--dry-run] [--smoke] [--retry-failed] "
        "[--accept-changed] [--KEY VALUE ...]",
        epilog=_EPILOG,
    )
    _refuse_launchers()
    from foretoken.sweeps.plan import load_plan

    plan = load_plan(options.file, overrides, storage=options.storage, output=options.output)
    if options.dry_run:
        _print_plan(plan)
        return 0
    if options.smoke:
        return _smoke(plan)
    from foretoken.sweeps.database import Database
    from foretoken.sweeps.sweep import Sweep

    database = Database(plan.config.database)
    try:
        return _run(Sweep(plan, database), options, words)
    finally:
        database.close()


def _run(sweep: Sweep, options: SweepCommand, words: Sequence[str]) -> int:
    if options.as_worker:
        _work(sweep, options)
        return 0
    if options.retry_failed:
        sweep.retry_broken()
    try:
        _work_here(sweep, options) if options.workers == 1 else _work_in_processes(sweep, options, words)
    except KeyboardInterrupt:
        _print_result(sweep)
        fail("interrupted; what was done is kept, and the same command goes on")
        return 130
    _print_result(sweep)
    return 2 if _say_failures(sweep) else 0


def _work_here(sweep: Sweep, options: SweepCommand) -> None:
    from foretoken.sweeps.record import Record
    from foretoken.sweeps.tables import ProgressTable
    from foretoken.sweeps.worker import Worker

    record = Record(sweep.plan, sweep.run_table.database.place)
    with ProgressTable() as progress:

        def publish(statuses: Sequence[VariantStatus]) -> None:
            record.write(statuses)
            progress.update(statuses)

        Worker(sweep, publish, accept_changed=options.accept_changed).work()


def _work_in_processes(sweep: Sweep, options: SweepCommand, words: Sequence[str]) -> None:
    from foretoken.sweeps.local_workers import run_local_workers
    from foretoken.sweeps.record import Record
    from foretoken.sweeps.status import is_over
    from foretoken.sweeps.tables import ProgressTable

    with ProgressTable() as progress:
        progress.update(sweep.look())
        command = [word for word in words if word != "--retry-failed"]
        logs = sweep.plan.config.folder / "workers"
        bad = run_local_workers(command, options.workers, logs, lambda: progress.update(sweep.look()))
    found = sweep.look()
    Record(sweep.plan, sweep.run_table.database.place).write(found)
    if bad and not is_over(found):
        raise WorkersError(f"{bad}; the same command goes on")
    if bad:
        log.warning("%s; the others did its work", bad)


def _work(sweep: Sweep, options: SweepCommand) -> None:
    """Work for a parent process that prints; stop when it has ended, as Ctrl-C no longer arrives then."""
    from foretoken.sweeps.heartbeat import ParentProcess
    from foretoken.sweeps.record import Record
    from foretoken.sweeps.worker import Worker

    parent, record = ParentProcess(), Record(sweep.plan, sweep.run_table.database.place)

    def publish(statuses: Sequence[VariantStatus]) -> None:
        if parent.is_gone:
            _thread.interrupt_main()
        record.write(statuses)

    Worker(sweep, publish, accept_changed=options.accept_changed).work()


def _print_result(sweep: Sweep) -> None:
    from foretoken.sweeps.record import FILE
    from foretoken.sweeps.tables import RESULT, result_rows

    table(RESULT, result_rows(sweep.latest))
    say()
    say(f"all candidates and scores: {sweep.plan.config.folder / FILE}")


def _say_failures(sweep: Sweep) -> bool:
    from foretoken.sweeps.status import broken
    from foretoken.sweeps.tables import broken_lines

    rows = broken(sweep.latest)
    if rows:
        lines = "\n  ".join(broken_lines(rows))
        fail(f"{len(rows)} runs failed; --retry-failed runs them again\n  {lines}")
    return bool(rows)


def _print_plan(plan: SweepPlan) -> None:
    from foretoken.sweeps.candidates import number_of_candidates
    from foretoken.sweeps.tables import PLANNED, planned_rows

    sizes = {item.name: number_of_candidates(item, plan.config.search) for item in plan.variants}
    rows = planned_rows(plan, sizes)
    table(PLANNED, rows)
    search, after = (sum(int(row[column]) for row in rows) for column in (3, 4))
    say()
    say(f"{search + after} runs: {search} of the search, {after} of the candidates it selects; nothing was run")


def _smoke(plan: SweepPlan) -> int:
    from foretoken.sweeps.smoke.runs import FOLDER, smoke

    tried = smoke(plan, lambda one: log.info("%s: %s", one.run, one.error or "done"))
    failed = [one for one in tried if one.error is not None]
    say(f"{len(tried)} runs of {len(plan.variants)} variants, {len(failed)} failed; {plan.config.folder / FOLDER}")
    if failed:
        fail("\n  ".join([f"{len(failed)} runs failed", *(f"{one.run}: {one.error}" for one in failed)]))
    return 2 if failed else 0


def _refuse_launchers() -> None:
    if num_processes() > 1:
        raise ConfigError("a sweep shares its runs out itself; start it without torchrun or accelerate launch")
