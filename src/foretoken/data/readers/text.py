"""Cleaning of raw text; pure functions."""

from __future__ import annotations

import html
import re

_LINK = re.compile(r"\b(?:https?://|www\.)\S+", re.IGNORECASE)
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s>/]*)[^>]*>")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,31});")
_REPEATED = re.compile(r"([!?.,;:*_=~-])(?:\s*\1){3,}")


def clean_article(text: str) -> str:
    """Return a news text on one line: entities resolved, addresses dropped, white space and rulers collapsed.

    The same steps in spirit as the cleaning of the Longformer release; unlike it, words joined by a slash
    (``and/or``) are kept. Entities are resolved again because the raw files hold some escaped twice
    (``&amp;#160;``); a no-break space becomes a space, and four or more of one punctuation mark become one.

    >>> clean_article("Tax&#160;cuts  &amp; more ........ see https://t.co/x now")
    'Tax cuts & more . see now'
    """
    text = _ENTITY.sub(lambda match: html.unescape(match.group()), text)
    text = _LINK.sub(" ", text)
    text = _REPEATED.sub(r"\1", " ".join(text.split()))
    return " ".join(text.split())


def strip_tags(text: str) -> str:
    """Return the text of an HTML fragment; links stay in their sentence, other elements stand apart.

    >>> strip_tags("<p>See <a href='x'>this</a> &amp; that.</p><p>Next</p>").split()
    ['See', 'this', '&', 'that.', 'Next']
    """
    plain = _TAG.sub(lambda match: "" if match.group(2).lower() == "a" else " ", text)
    return html.unescape(plain)
