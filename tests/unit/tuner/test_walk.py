"""What a reader of a layer walks through: few files, and hardly ever back to one that was left."""

import pytest

from support.walk import bank_attention, longformer_layer

BARS = (
    (longformer_layer, True, 14),
    (longformer_layer, False, 17),
    (bank_attention, True, 18),
    (bank_attention, False, 16),
)


@pytest.mark.parametrize(("way", "packed", "most"), BARS)
def test_a_reader_is_not_sent_to_and_fro(way, packed, most):
    files = way(packed=packed)
    assert 10 <= len(files) <= most
    assert files.total() - len(files) <= 40
