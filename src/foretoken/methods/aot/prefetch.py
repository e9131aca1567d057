"""Reading ahead in the file of a fused table: the kernel is told which rows the next layers will look up.

A table that is mapped and not in memory is read page by page where it is touched, and every layer waits. The first
layer knows the tokens, and so the rows of all layers: their pages are asked for at once, in the background. These are
hints: no row passes through here, and no result depends on them. Shapes: L layers, V vocabulary, D width, U rows.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

from torch import Tensor

SUPPORTED = all(hasattr(os, name) for name in ("posix_fadvise", "preadv", "RWF_NOWAIT"))  # Linux has them
PROBES = 8
GAP = 2**15  # bytes between two rows that are read along rather than asked for apart
LARGEST = 2**17  # of a longer range the kernel reads the beginning only

Run = tuple[int, int]


class Prefetcher:
    """Asks for the pages of rows before they are looked up, if they are not in memory.

    Args:
        path: a safetensors file.
        tensor: the name of its (L, V, D) tensor.
        shape: L, V and D.
        itemsize: bytes of a number.
    """

    def __init__(self, path: Path, tensor: str, shape: tuple[int, int, int], itemsize: int) -> None:
        self.layers, self.vocabulary = shape[:2]
        self.row = shape[2] * itemsize
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file).atexit = False
        self.start = first_byte(path, tensor)
        self.worker: Thread | None = None

    def __call__(self, layer: int, token_ids: Tensor) -> None:
        """Ask for the rows (U,) of a layer now, and in the background for those of the layers after it."""
        if not token_ids.numel() or self.in_memory(layer, token_ids):
            return
        runs = list(self.runs(token_ids))
        self.ask((layer,), runs)
        if self.worker is None or not self.worker.is_alive():  # in a process that was forked it is not alive
            self.worker = Thread(target=self.ask, args=(range(layer + 1, self.layers), runs), daemon=True)
            with suppress(RuntimeError):  # the interpreter is about to end
                self.worker.start()

    def in_memory(self, layer: int, token_ids: Tensor) -> bool:
        """Tell from a few rows, spread over the tokens and the layers, whether all seem to be in memory."""
        count, rest = token_ids.numel(), self.layers - layer
        places = sorted({i * (count - 1) // (PROBES - 1) for i in range(PROBES)})
        ids = token_ids[places].tolist()
        return all(self.is_cached(layer + i % rest, token_id) for i, token_id in enumerate(ids))

    def is_cached(self, layer: int, token_id: int) -> bool:
        """Read a byte of a row if that takes no waiting; where this cannot be told, count it as cached."""
        try:
            os.preadv(self.file, [bytearray(1)], self.place(layer, token_id), os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # the file system does not know RWF_NOWAIT
            return True
        return True

    def place(self, layer: int, token_id: int) -> int:
        """Return where a row begins in the file."""
        return self.start + (layer * self.vocabulary + token_id) * self.row

    def runs(self, token_ids: Tensor) -> Iterator[Run]:
        """Yield (offset, size) in bytes within a layer: rows that are near each other in one, none too large."""
        ids = token_ids.sort().values
        apart = ((ids.diff() - 1) * self.row > GAP).nonzero()[:, 0]
        firsts = [int(ids[0]), *ids[apart + 1].tolist()]
        lasts = [*ids[apart].tolist(), int(ids[-1])]
        for first, last in zip(firsts, lasts, strict=True):
            begin, end = first * self.row, (last + 1) * self.row
            for offset in range(begin, end, LARGEST):
                yield offset, min(LARGEST, end - offset)

    def ask(self, layers: Iterable[int], runs: list[Run]) -> None:
        """Ask for the runs of each layer in turn."""
        with suppress(OSError):
            for layer in layers:
                start = self.place(layer, 0)
                for offset, size in runs:
                    os.posix_fadvise(self.file, start + offset, size, os.POSIX_FADV_WILLNEED)


def first_byte(path: Path, tensor: str) -> int:
    """Return where a tensor begins in a safetensors file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return 8 + size + json.loads(file.read(size))[tensor]["data_offsets"][0]
