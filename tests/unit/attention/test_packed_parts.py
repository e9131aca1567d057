"""Runs of documents in batches of like length."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.attention.packed import packed_batch_of
from foretoken.attention.packed.parts import alike


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=9),
    prefix_length=st.integers(0, 2),
    holes=st.sets(st.integers(0, 299), max_size=4),
)
def test_what_is_taken_apart_comes_together_again(lengths, prefix_length, holes):
    places = torch.arange(max(max(lengths), 1))
    masked = places >= torch.tensor(lengths)[:, None]
    masked[:, [place for place in holes if place < len(places)]] = True
    batch = packed_batch_of(masked, torch.zeros_like(masked), prefix_length=prefix_length)
    padded = torch.randn(len(lengths), prefix_length + len(places), 2)
    run = batch.pack(padded)
    parts = alike(batch)
    split = parts.split(run)
    torch.testing.assert_close(parts.join(split), run, atol=0, rtol=0)
    seen = torch.zeros(len(lengths))
    for part, own in zip(parts.batches, split, strict=True):
        longest = max(document.stop - document.start for document in part.documents)
        assert part.length == (max(1, longest) if len(parts.batches) > 1 else len(places))
        texts, mask = part.unpack(own), part.masks()[0]
        for row in range(part.size):
            tokens = texts[row][~mask[row]]
            whose = [
                n for n in range(len(lengths)) if torch.equal(tokens, real_tokens(padded, masked, prefix_length, n))
            ]
            seen[whose] = 1
    assert bool(seen.all())


def real_tokens(padded, masked, prefix_length, number):
    real = torch.cat([torch.ones(prefix_length, dtype=torch.bool), ~masked[number]])
    return padded[number][real]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([512, 500, 400, 100, 90, 60, 5], [512, 100, 60]),
        ([64, 1], [64]),
        ([300, 300], [300]),
        ([300, 30, 2], [300, 30]),
    ],
)
def test_documents_of_like_length_share_a_batch(lengths, expected):
    masked = torch.arange(512) >= torch.tensor(lengths)[:, None]
    batch = packed_batch_of(masked, torch.zeros_like(masked), prefix_length=0)
    parts = alike(batch).batches
    found = [max(document.stop - document.start for document in part.documents) for part in parts]
    assert found == expected
