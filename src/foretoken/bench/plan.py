"""What a benchmark is asked for, and the parts that it is made of; no torch here, so that ``--help`` is quick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretoken.errors import ConfigError, did_you_mean

DTYPES = ("float32", "bfloat16")
ALLOCATORS = ("default", "tuned")
LENGTHS, LONG_LENGTHS, QUICK_LENGTHS = (512, 1024, 2048, 4096), (8192, 16384), (512,)
TINY_DIVISOR = 32  # the tiny shape has a window of 16 for 512


@dataclass(frozen=True)
class Options:
    """What the command line says; None: the benchmark's own default.

    Attributes:
        quick: small sizes and few rounds.
        shape: ``base`` (the published models' sizes) or ``tiny`` (to try the harness itself).
        layers: of the model.
        threads: of the processor.
        dtypes: float32, bfloat16 or both.
        allocators: glibc as it is (default), as the command line sets it (tuned), or both.
        rounds: turns of every candidate.
        output: folder of the results.
        device: ``cpu`` or ``cuda``.
        batch_size: documents of a batch (padding).
        lengths: file of document lengths, one number a line (padding).
        engines: attention engines to put beside the automatic choice (encoder).
    """

    quick: bool = False
    shape: str = "base"
    layers: int | None = None
    threads: int | None = None
    dtypes: Sequence[str] | None = None
    allocators: Sequence[str] | None = None
    rounds: int | None = None
    output: Path = Path("bench")
    device: str = "cpu"
    batch_size: int = 8
    lengths: Path | None = None
    engines: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("layers", "threads", "rounds", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} is {value}; expected a whole number from 1")

    def size(self, value: int) -> int:
        """Return a number of tokens in the chosen shape."""
        return value // TINY_DIVISOR if self.shape == "tiny" else value

    def sizes(self, full: Sequence[int], quick: Sequence[int]) -> list[int]:
        """Return numbers of tokens: all of them, or the quick run's."""
        return [self.size(value) for value in (quick if self.quick else full)]

    def settings(self, **own: Any) -> dict[str, Any]:
        """Return what every part is told, and what this one is."""
        return {"shape": self.shape, "device": self.device, "threads": self.threads, **own}

    def effort(self, *, rounds: int, seconds: float) -> dict[str, Any]:
        """Return the effort of a part; a quick run stops early."""
        if self.quick:
            return {"rounds": self.rounds or 2, "seconds": min(3.0, seconds)}
        return {"rounds": self.rounds or rounds, "seconds": seconds}

    def allocators_or(self, *default: str) -> Sequence[str]:
        """Return the allocators to measure with; a GPU's memory is not glibc's."""
        return ("tuned",) if self.device != "cpu" else self.allocators or default

    def dtypes_or(self, *default: str) -> Sequence[str]:
        """Return the types to measure in."""
        return self.dtypes or default


@dataclass(frozen=True)
class Part:
    """What one process measures.

    Attributes:
        benchmark: a name of :data:`foretoken.bench.BENCHMARKS`.
        title: what the progress bar calls it.
        dtype: of the model.
        allocator: ``default`` or ``tuned``.
        settings: what the benchmark's ``measure`` needs; plain values.
    """

    benchmark: str
    title: str
    dtype: str = "float32"
    allocator: str = "tuned"
    settings: dict[str, Any] = field(default_factory=dict)


def check_engines(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise ConfigError for an engine that there is not."""
    for name in names:
        if name not in known:
            raise ConfigError(f"no attention engine {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}")


def read_lengths(path: Path) -> list[int]:
    r"""Read document lengths, one whole number above 0 a line.

    >>> file = getfixture("tmp_path") / "lengths.txt"
    >>> _ = file.write_text("12\n700\n")
    >>> read_lengths(file)
    [12, 700]
    """
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--lengths: cannot read {path}: {error}; give a text file of one length a line") from error
    bad = next((line for line in lines if not line.isdecimal() or int(line) < 1), None)
    if bad is not None or not lines:
        raise ConfigError(f"--lengths: {path} has {bad!r}; expected one whole number above 0 a line")
    return [int(line) for line in lines]
