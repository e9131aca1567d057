"""Tag schemes: detection, checks and conversion to IOB2."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from foretoken.data.documents import shown
from foretoken.data.examples import OUTSIDE
from foretoken.errors import DataError

AUTO, ENTITIES, POS = "auto", "entities", "pos"
BIO, BIO1, _IO = "bio", "bio1", "io"
_LETTERS = {BIO: "BI", BIO1: "BI", "bioes": "BIESMW", "bilou": "BILU"}  # before the type; M as in BMES, W as in BMEWO
_BEGIN, _END = "BSUW", "ESUWL"  # letters of an entity's first and last words
_MARKED = re.compile(r"([BIESMWLU])-(.+)", re.DOTALL)
ENTITY_TAG = re.compile(r"O|[BIESMWLU]-\S+")


def scheme_of(source: str, sentences: Iterable[Sequence[str]], kind: str = AUTO) -> str:
    """Return the scheme of the tags of a source: the given one, or the one of most tags.

    Args:
        source: name of the source in messages.
        sentences: tags of the sentences.
        kind: the scheme; ``entities`` for any but ``pos``, ``auto`` for any.

    Raises:
        DataError: the tags are numbers, or tags of entities with ``pos``.

    >>> scheme_of("a", [["B-PER", "E-PER", "O"]]), scheme_of("a", [["DET", "NOUN"]]), scheme_of("a", [["PER", "O"]])
    ('bioes', 'pos', 'io')
    """
    sentences = list(sentences)
    counts = Counter(tag for tags in sentences for tag in tags)
    outside, letters = counts.pop(OUTSIDE, 0), Counter[str]()
    for tag, count in counts.items():
        letters.update({mark[1]: count} if (mark := _MARKED.fullmatch(tag)) else {})
    if kind == POS and counts and not letters.keys() - set("BI") and letters.total() == counts.total():
        raise DataError(
            f"{source}: all tags are O, B-<type> or I-<type>, which mark entities, where word classes are expected; "
            "name their column with data.tag_column, or leave out data.tag_scheme: pos"
        )
    if kind not in (AUTO, ENTITIES):
        return kind
    if counts and all(tag.isdecimal() for tag in counts):
        raise DataError(
            f"{source}: the tags are numbers ({shown(sorted({*counts}))}), whose names are not known; write the names, "
            "or set data.tag_scheme: pos, where the numbers are the tags"
        )
    if 2 * letters.total() < counts.total():  # a scheme without letters; O may also be a word class
        return _IO if kind == ENTITIES or 5 * outside > counts.total() else POS
    return _with_letters(set(letters), sentences)


def _with_letters(letters: set[str], sentences: Sequence[Sequence[str]]) -> str:
    if letters & {*"LU"}:
        return "bilou"
    if letters & {*"ESMW"}:
        return "bioes"
    if "I" in letters and "B" not in letters:
        return _IO
    pairs = [pair for tags in sentences for pair in zip((OUTSIDE, *tags), tags, strict=False)]
    is_first = any(starts_without_b(*pair) for pair in pairs) and not any(needless_b(*pair) for pair in pairs)
    return BIO1 if is_first else BIO


def check_tag(where: str, tag: str, scheme: str) -> None:
    """Raise a DataError for a tag that the scheme does not have."""
    mark = _MARKED.fullmatch(tag)
    letters = _LETTERS.get(scheme)
    if letters is None:
        fits, expected = bool(tag.strip()) and (scheme == POS or not (mark and mark[1] == "B")), "the name of a type"
    else:
        fits = tag == OUTSIDE or (mark is not None and mark[1] in letters)
        *others, last = [OUTSIDE, *(f"{letter}-<type>" for letter in letters)]
        expected = f"{', '.join(others)} or {last}"
    if not fits:
        raise DataError(
            f"{where}: tag {tag!r} is not known; expected {expected} ({scheme}; data.tag_scheme names another)"
        )


def to_iob2(tags: Iterable[str], scheme: str = AUTO) -> list[str]:
    """Return tags of any scheme of entities in IOB2, where every entity begins with ``B-``.

    In IOB1 an entity begins with ``I-``, or with ``B-`` right after another of its type (Tjong Kim Sang and Veenstra
    1999). Tags in IOB2 stay as they are.

    >>> to_iob2(["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG"])
    ['B-PER', 'I-PER', 'B-PER', 'O', 'B-LOC', 'B-ORG']
    >>> to_iob2(["S-PER", "B-PER", "E-PER", "S-PER"]), to_iob2(["PER", "PER", "LOC", "O"])
    (['B-PER', 'B-PER', 'I-PER', 'B-PER'], ['B-PER', 'I-PER', 'B-LOC', 'O'])
    """
    changed: list[str] = []
    before, kind_before = "", ""
    for tag in tags:
        mark = None if scheme == _IO and not tag.startswith("I-") else _MARKED.fullmatch(tag)
        letter, kind = (mark[1], mark[2]) if mark else ("I", "" if tag == OUTSIDE else tag)
        begins = letter in _BEGIN or kind != kind_before or bool(before and before in _END)
        changed.append(f"{'B' if begins else 'I'}-{kind}" if kind else OUTSIDE)
        before, kind_before = letter, kind
    return changed


def starts_without_b(before: str, tag: str) -> bool:
    """Tell whether a tag begins an entity as in IOB1."""
    return tag.startswith("I-") and before[2:] != tag[2:]  # O has no type


def needless_b(before: str, tag: str) -> bool:
    """Tell whether a tag begins an entity as it never does in IOB1."""
    return tag.startswith("B-") and before[2:] != tag[2:]
