"""The synonyms that METEOR asks for, from nltk's WordNet where it is on this machine."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

log = logging.getLogger(__name__)


@cache
def wordnet() -> Any | None:
    """Return nltk's reader of WordNet, or None, saying once in the log how to get the files; nothing is downloaded."""
    from nltk.corpus import wordnet as reader

    try:
        reader.ensure_loaded()
    except LookupError:
        log.warning("meteor is left out: nltk has no WordNet here; get it with `python -m nltk.downloader wordnet`")
        return None
    return reader
