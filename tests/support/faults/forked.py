"""Commands in processes of their own, in a tenth of a second each: forked from one that has imported everything.

A process of its own has its own memory limit, its own deadline, and can be killed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ZYGOTE = Path(__file__).with_name("zygote.py")
SCREENFUL = 22  # lines: a head, what is wrong with each key, and how many more there are
LONGEST_LINE = 500  # characters of an error's line


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (negative: the signal that killed it), and what it printed."""

    code: int
    out: str
    err: str
    seconds: float
    peak_mb: float
    timed_out: bool

    @property
    def error(self) -> list[str]:
        """The lines of its error, the first one without `foretoken: error: `; empty where it said none."""
        lines = self.err.splitlines()
        first = next((n for n, line in enumerate(lines) if line.startswith("foretoken: error: ")), None)
        return [] if first is None else [lines[first].removeprefix("foretoken: error: "), *lines[first + 1 :]]


class Forked:
    """Runs `foretoken` with given words; `preload` is a library that is loaded before all others."""

    def __init__(self, folder: Path, *, preload: Path | None = None, threads: int = 1) -> None:
        self.folder = folder
        self.number = 0
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "COLUMNS": "80",
            "PYTHONHASHSEED": "0",  # peft writes sets in the order that they have
        }
        if preload is not None:
            environment["LD_PRELOAD"] = str(preload)
        self.log = (folder / "zygote.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(ZYGOTE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            text=True,
        )
        assert self._answer() == {"ready": True}

    def __call__(
        self,
        *words: object,
        cwd: Path | None = None,
        seconds: float = 30,
        more_mb: int = 3000,
        stdin: str | Path = "",
        stdout: str | Path | None = None,
        fault: Sequence[object] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run one command and wait for its end.

        Args:
            words: of the command line, after `foretoken`.
            cwd: the folder that it runs in.
            seconds: after which it is killed.
            more_mb: address space that it may take beyond that of the imported libraries; 0: any.
            stdin: a text, or the path of a file.
            stdout: a file that takes its output, in place of `out`.
            fault: the arguments of `foretoken_fault` in the library that is preloaded.
            environment: variables beside those of this process.
        """
        self.number += 1
        files = {name: self.folder / f"{self.number}.{name}" for name in ("stdin", "out", "err")}
        if isinstance(stdin, str):
            files["stdin"].write_text(stdin, encoding="utf-8", errors="surrogateescape")
        else:
            files["stdin"] = stdin
        files["out"] = Path(stdout) if stdout else files["out"]
        request = {
            "argv": [str(word) for word in words],
            "cwd": str(cwd or self.folder),
            "seconds": seconds,
            "more_mb": more_mb,
            "fault": list(fault),
            "environment": dict(environment or {}),
        } | {name: str(file) for name, file in files.items()}
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self._answer()
        out = "" if stdout else files["out"].read_text(encoding="utf-8", errors="replace")
        return Ended(out=out, err=files["err"].read_text(encoding="utf-8", errors="replace"), **answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.log.close()

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the zygote ended; see {self.log.name}: {Path(self.log.name).read_text()[-2000:]}"
        return json.loads(line)


def assert_done_or_refused(ended: Ended, *, lines: int = 12) -> bool:
    """Assert success, or exit code 2 with an error of short lines; tell whether it was a success."""
    shown = f"exit code {ended.code} after {ended.seconds:.1f} s\n{ended.err[-3000:]}"
    assert not ended.timed_out, f"hangs: {shown}"
    assert "Traceback" not in ended.err, shown
    assert ended.code in (0, 2), shown
    if ended.code == 0:
        assert not ended.error, shown
        return True
    assert 1 <= len(ended.error) <= lines, shown
    assert all(len(line) <= LONGEST_LINE for line in ended.error), shown
    assert all(line.isprintable() for line in ended.error), shown
    return False
