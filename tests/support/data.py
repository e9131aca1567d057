"""Data as tests look at them."""

import datasets

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions


def load(options: DataOptions) -> datasets.DatasetDict:
    """Return train, validation and test."""
    return load_data(options).splits
