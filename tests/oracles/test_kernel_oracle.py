"""The kernel decomposition of prefix-propagation against the naive models."""

import naive_edits
import pytest
import torch
from families import FAMILIES, NUM_LAYERS, WIDTH, documents, oracle

P = 3


@pytest.mark.parametrize("family", FAMILIES)
def test_lambda_for_alpha_is_prefix_propagation(family):
    """Eq. 5 is eq. 1 in every layer and family: of windows, of global tokens, and of what a causal query sees."""
    rows = 0.3 * torch.randn(NUM_LAYERS, P, WIDTH).double()
    for ids in documents():
        whole = oracle(family)(ids, naive_edits.prefix_propagation(rows))
        split = oracle(family)(ids, naive_edits.kernel_propagation(rows))
        torch.testing.assert_close(split, whole, atol=1e-10, rtol=0)
