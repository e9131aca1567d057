"""The synonyms that METEOR needs, from nltk's WordNet where it is installed."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

log = logging.getLogger(__name__)


@cache
def wordnet() -> Any | None:
    """Return nltk's reader of WordNet; None where the files are not installed, with one warning that says how to."""
    from nltk.corpus import wordnet as reader

    try:
        reader.ensure_loaded()
    except LookupError:
        log.warning("meteor is left out: nltk has no WordNet here; get it with `python -m nltk.downloader wordnet`")
        return None
    return reader
