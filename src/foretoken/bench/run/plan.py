"""What a benchmark is asked for, and the parts that it is made of; no torch here, so that ``--help`` is quick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from foretoken.errors import ConfigError, no_such
from foretoken.limits import MOST_DOCUMENTS, MOST_THREADS
from foretoken.options import check_fields, option

DTYPES = ("float32", "bfloat16")
ALLOCATORS = ("default", "tuned")
LENGTHS, LONG_LENGTHS, QUICK_LENGTHS = (512, 1024, 2048, 4096), (8192, 16384), (512,)
TINY_DIVISOR = 32  # the tiny shape has a window of 16 for 512


@dataclass(frozen=True)
class Options:
    """What a benchmark is asked for; None: its own default."""

    quick: bool = option("small sizes and few rounds: under a minute, and no target is meant for it", False)
    layers: int | None = option("layers of the model", None, at_least=1, at_most=1000)
    threads: int | None = option(
        "threads of the processor (default: PyTorch's)", None, at_least=1, at_most=MOST_THREADS
    )
    dtype: Literal["float32", "bfloat16", "both"] | None = option(
        "type of the model (default: the benchmark's own)", None
    )
    allocator: Literal["default", "tuned", "both"] | None = option(
        "glibc's as it is, tuned, or both (default: the benchmark's)", None
    )
    rounds: int | None = option("turns of every candidate", None, at_least=1, at_most=1_000_000)
    device: Literal["cpu", "cuda"] = option("where to measure", "cpu")
    shape: Literal["base", "tiny"] = option("sizes of the model; tiny tries the harness", "base")
    output: Path = option("folder to write to", Path("bench"))
    part: list[str] = option("measure only the parts with this in their title; may be repeated", factory=list)
    engine: list[str] = option(
        "put this attention engine beside the automatic one; may be repeated", factory=list, only="encoder"
    )
    batch_size: int = option("documents of a batch", 8, at_least=1, at_most=MOST_DOCUMENTS, only="padding")
    method: list[str] = option("measure only this method; may be repeated", factory=list, only="methods")
    lengths: Path | None = option(
        "text file with a document's length in every line (default: drawn)", None, only="padding"
    )
    grid: bool = option("inference against prefix lengths and ranks, P-tuning v1 and v2 beside", False, only="aot")
    prefix_length: list[int] = option(
        "with --grid: a prefix length p; may be repeated", factory=list, at_least=1, at_most=10_000, only="aot"
    )
    rank: list[int] = option(
        "with --grid: a rank r; may be repeated", factory=list, at_least=1, at_most=10_000, only="aot"
    )
    grid_size: list[str] = option(
        "with --grid: documents x tokens, such as 16x128; may be repeated", factory=list, only="aot"
    )
    requests: int | None = option(
        "mixed requests that are asked together and again one at a time (default: 1,000)",
        None,
        at_least=1,
        at_most=10_000_000,
        only="serve",
    )
    family: list[Literal["roberta", "longformer"]] = option(
        "with --grid: the model; may be repeated", factory=list, only="aot"
    )

    def __post_init__(self) -> None:
        """Refuse values of another type or out of range."""
        check_fields(self)
        of_grid = [name for name in ("prefix_length", "rank", "grid_size", "family") if getattr(self, name)]
        if of_grid and not self.grid:
            raise ConfigError(f"--{of_grid[0].replace('_', '-')} is for the grid; give --grid too")

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
        """Return the effort of a part; a quick run stops early, rounds that were asked for are all made."""
        if self.rounds:
            return {"rounds": self.rounds, "seconds": None}
        if self.quick:
            return {"rounds": 2, "seconds": min(3.0, seconds)}
        return {"rounds": rounds, "seconds": seconds}

    def chosen(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts that are asked for.

        Raises:
            ConfigError: none of them has such a title.
        """
        found = [one for one in parts if not self.part or any(text in one.title for text in self.part)]
        if not found:
            titles = "; ".join(one.title for one in parts)
            raise ConfigError(f"--part: got {', '.join(self.part)}; expected something of: {titles}")
        return found

    def allocators_or(self, *default: str) -> Sequence[str]:
        """Return the allocators to measure with; a GPU's memory is not glibc's."""
        return ("tuned",) if self.device != "cpu" else _chosen(self.allocator, ALLOCATORS) or default

    def dtypes_or(self, *default: str) -> Sequence[str]:
        """Return the types to measure in."""
        return _chosen(self.dtype, DTYPES) or default


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


def _chosen(word: str | None, both: Sequence[str]) -> Sequence[str]:
    return () if word is None else both if word == "both" else (word,)


def check_engines(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise ConfigError for an engine that there is not."""
    for name in names:
        if name not in known:
            raise ConfigError(no_such("attention engine", name, known))


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
