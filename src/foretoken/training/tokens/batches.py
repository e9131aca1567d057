"""The order in which documents are trained on: random, but batches hold documents of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

_POOL = 50  # batches whose documents are sorted together


class BucketSampler(Sampler[int]):
    """Shuffle, sort pools of 50 batches by length, cut them into batches, shuffle the batches.

    transformers' own length-grouped sampler hands out each pool from longest to shortest, so that length
    follows the step and, with few documents, a whole epoch is sorted. Here the order of batches is random.
    """

    def __init__(self, lengths: Sequence[int], *, batch_size: int, seed: int) -> None:
        self.lengths = list(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; the same seed and epoch always give the same order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        batches = [batch for pool in _chunks(order, self.batch_size * self._pool()) for batch in self._bucket(pool)]
        yield from self._shuffled(batches, generator)

    def _pool(self) -> int:
        """Few documents: pools of a quarter of them, so that epochs still differ."""
        return max(1, min(_POOL, len(self.lengths) // (self.batch_size * 4)))

    def _bucket(self, pool: list[int]) -> list[list[int]]:
        return _chunks(sorted(pool, key=lambda index: self.lengths[index]), self.batch_size)

    def _shuffled(self, batches: list[list[int]], generator: torch.Generator) -> Iterator[int]:
        """Yield the batches in random order; short ones come last, or they would shift all that follow."""
        full = [batch for batch in batches if len(batch) == self.batch_size]
        rest = sorted(
            (index for batch in batches if len(batch) < self.batch_size for index in batch),
            key=lambda index: self.lengths[index],
        )
        for position in torch.randperm(len(full), generator=generator).tolist():
            yield from full[position]
        yield from rest


class ShuffleSampler(BucketSampler):
    """Random order without regard to length, a function of seed and epoch alone."""

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        yield from torch.randperm(len(self.lengths), generator=generator).tolist()


def _chunks(items: list[int], size: int) -> list[list[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
