"""Commands that are killed, or find a full disk, at any call that changes a file; and what they leave."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.faults.forked import Ended, Forked, assert_done_or_refused

SHIM = Path(__file__).with_name("shim.c")
ENDS = {"int": (130,), "term": (-15,)}  # exit codes after a signal; after any kill it is -9
DISKS = ("full", "readonly", "eio")  # faults that a process lives through
SAID = {"full": "No space left on device; free some space", "readonly": "Read-only file system; choose a folder"}
LONGEST = 300  # seconds of a command
TIMES = ("started", "ended", "timings", "memory", "hardware", "train_seconds", "seconds", "database", "written")
SPEEDS = ("runtime", "samples_per_second", "steps_per_second")


def compiled(folder: Path) -> Path:
    """Return the library that counts and breaks calls."""
    library = folder / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class Case:
    """A command, the folder that it starts in, and how to read what it leaves there.

    Attributes:
        name: of the case.
        words: of the command line.
        start: fills an empty folder.
        in_workers: the fault is for the processes that the command starts, each of which counts its own calls.
        output: the one place that it writes, which is as before, gone or whole after any fault.
    """

    name: str
    words: tuple[str, ...]
    start: Callable[[Path], None]
    in_workers: bool = False
    output: str | None = None


@dataclass(frozen=True)
class Undisturbed:
    """What a case starts from, what it leaves when nothing goes wrong, and the calls that it makes."""

    before: dict[str, Any]
    left: dict[str, Any]
    calls: list[str]


class Crashes:
    """Runs cases undisturbed, once, and disturbed, as often as asked."""

    def __init__(self, forked: Forked, folder: Path) -> None:
        self.forked = forked
        self.folder = folder
        self.known: dict[str, Undisturbed] = {}

    def undisturbed(self, case: Case) -> Undisturbed:
        """Run a case without a fault; a second time it is known."""
        if case.name not in self.known:
            work, log = self._fresh(case), self.folder / f"{case.name}.calls"
            before = left(work)
            ended = self._run(case, work, -1, "count", str(log))
            assert ended.code == 0, ended.err
            self.known[case.name] = Undisturbed(before, left(work), log.read_text().splitlines())
            shutil.rmtree(work)
        return self.known[case.name]

    def disturbed(self, case: Case, mode: str, at: int) -> Ended:
        """Disturb a case at one call, give the command again, and compare with the undisturbed one.

        Where the disturbed command had left everything whole, the second one may refuse to overwrite it.
        """
        expected = self.undisturbed(case)
        work = self._fresh(case)
        first = self._run(case, work, at, mode)
        shown = (
            f"{case.name}, {mode} at {expected.calls[at].replace(str(work), '')}: exit code {first.code}\n{first.err}"
        )
        if mode in DISKS or case.in_workers:  # the other worker may do what is left
            is_done = assert_done_or_refused(first)
            assert is_done or SAID.get(mode, "") in first.err, shown
        else:
            assert first.code in ENDS.get(mode, (-9,)), shown
            assert "Traceback" not in first.err, shown
        there = {name: what for name, what in left(work).items() if ".foretoken-" not in name}
        if case.output is not None:
            others = {name: what for name, what in expected.before.items() if not name.startswith(case.output)}
            assert there in (expected.before, expected.left, others), shown
        done = there == expected.left
        second = self.forked(*case.words, cwd=work, seconds=LONGEST)
        if second.code == 2 and "--retry-failed" in second.err:  # a run that an error ended is not tried again unasked
            second = self.forked(*case.words, "--retry-failed", cwd=work, seconds=LONGEST)
        refused = done and any(word in second.err for word in (" exists;", " already exists"))
        assert second.code == 0 or refused, f"{shown}\nthen {second.err}"
        found = differing(expected.left, left(work))
        assert not found, f"{found}\n{shown}"
        shutil.rmtree(work)
        return first

    def _run(self, case: Case, work: Path, at: int, mode: str, log: str = "") -> Ended:
        fault = (str(work), at, mode, log)
        if not case.in_workers:
            return self.forked(*case.words, cwd=work, seconds=LONGEST, fault=fault)
        for_workers = {"FORETOKEN_FAULT": "|".join(map(str, fault))}
        return self.forked(*case.words, cwd=work, seconds=LONGEST, environment=for_workers)

    def _fresh(self, case: Case) -> Path:
        work = self.folder / f"{case.name}-work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        case.start(work)
        return work


def left(work: Path) -> dict[str, Any]:
    """Return what is in a folder: every file by its name, and what it says, without its times; no logs."""
    files = (path for path in sorted(work.rglob("*")) if path.is_file() and path.suffix != ".log")
    return {path.relative_to(work).as_posix(): said(path) for path in files}


def differing(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """Return what differs in two nested values, by where it lies; short enough to be read."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return {} if one == other else {"": (str(one)[:300], str(other)[:300])}
    found = {key: differing(one.get(key), other.get(key)) for key in {**one, **other}}
    return {f"{key}/{below}": values for key, parts in found.items() for below, values in parts.items()}


def said(file: Path) -> Any:
    """Return what a file says; of any other than JSON and parquet its checksum."""
    if file.suffix == ".json":
        with suppress(ValueError):  # cut short: as what it is
            return without_times(json.loads(file.read_text()))
    if file.suffix == ".parquet":
        with suppress(OSError, pa.ArrowException):
            return pq.read_table(file).to_pydict()
    if file.suffix in (".db", ".sqlite"):
        return "a database"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def without_times(values: Any) -> Any:
    """Return plain data without what a clock says."""
    if isinstance(values, dict):
        return {
            key: without_times(value)
            for key, value in values.items()
            if key not in TIMES and not any(key.endswith(name) for name in SPEEDS)
        }
    return [without_times(value) for value in values] if isinstance(values, list) else values
