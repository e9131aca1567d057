"""Fewer log messages of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers(*, bars: bool = False) -> Iterator[None]:
    """Silence transformers' report on a new head, which is expected; with `bars`, keep its progress bars."""
    from transformers.utils import logging as hf_logging

    before, had_bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    if not bars:
        hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(before)
        if had_bars:
            hf_logging.enable_progress_bar()
