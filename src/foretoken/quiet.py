"""transformers without its own reports, of which ours say what matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers(*, bars: bool = False) -> Iterator[None]:
    """Hold back transformers' report on the new head, which is expected and said in one line of ours.

    Its progress bars of reading and writing weights stay with `bars`.
    """
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
