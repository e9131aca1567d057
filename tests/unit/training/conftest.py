"""What tests of several problems share."""

import pytest

from foretoken.attention.attend import use_packing


@pytest.fixture
def packing():
    """Choose whether documents run packed, until the test is over."""
    yield use_packing
    use_packing(None)
