"""Scores of tokens as those of words, and of passages: sentences, or pieces of long ones."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foretoken.training.tokens.places import Span

LONGEST = 50  # tokens of a passage
_BORDER = re.compile("[.!?…]['\"\u201d\u2019»)\\]]{0,3}\\s|[。\uff01\uff1f]|\n")
_APOSTROPHES = "'\u2019"
_UNSPACED = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]")  # Thai, Lao, Tibetan, Burmese, Khmer


@dataclass(frozen=True)
class Scored:
    """A piece of a document, its score, and how many tokens it has."""

    span: Span
    score: float
    tokens: int = 1


def joined(pieces: Sequence[Scored]) -> Scored:
    """Return neighbouring pieces as one: its score is their sum."""
    first, last = pieces[0].span, pieces[-1].span
    span = Span(first.start, max(first.end, last.end), first.side)
    return Scored(span, sum(piece.score for piece in pieces), sum(piece.tokens for piece in pieces))


def words_of(tokens: Iterable[Scored], texts: Sequence[str]) -> list[Scored]:
    """Return the words that tokens are pieces of.

    >>> tokens = [Scored(Span(0, 3), 0.5), Scored(Span(3, 5), 0.25), Scored(Span(5, 6), 1.0), Scored(Span(7, 9), 2.0)]
    >>> [(word.span.start, word.span.end, word.score) for word in words_of(tokens, ["sunny! up"])]
    [(0, 5, 0.75), (5, 6, 1.0), (7, 9, 2.0)]
    """
    words: list[list[Scored]] = []
    for token in tokens:
        if words and _goes_on(words[-1][-1].span, token.span, texts[token.span.side]):
            words[-1].append(token)
        else:
            words.append([token])
    return [joined(word) for word in words]


def passages_of(words: Iterable[Scored], texts: Sequence[str], *, longest: int = LONGEST) -> list[Scored]:
    """Return the sentences of words; one of more tokens than ``longest`` in pieces of about that size.

    >>> words = [Scored(Span(0, 1), 1.0), Scored(Span(1, 2), 0.5), Scored(Span(3, 4), 2.0)]
    >>> [(passage.span.end, passage.score) for passage in passages_of(words, ["A. B"])]
    [(2, 1.5), (4, 2.0)]
    """
    borders = [[match.end() for match in _BORDER.finditer(text)] for text in texts]
    passages: dict[tuple[int, int, int], list[Scored]] = {}  # by text, sentence, and piece of the sentence
    sentence, piece, size = (-1, 0), 0, 0
    for word in words:
        place = word.span.side, bisect_right(borders[word.span.side], word.span.start)
        if place != sentence:
            sentence, piece, size = place, 0, 0
        elif size + word.tokens > longest:
            piece, size = piece + 1, 0
        size += word.tokens
        passages.setdefault((*sentence, piece), []).append(word)
    return [joined(passage) for passage in passages.values()]


def _goes_on(before: Span, span: Span, text: str) -> bool:
    """Tell whether a token belongs to the word of the one before it."""
    if before.side != span.side or before.end < span.start:
        return False
    if span.start < before.end or span.start == span.end or before.start == before.end:
        return True  # bytes of one letter, or nothing that is seen
    last, first = text[before.end - 1], text[span.start]
    return (_is_letter(last) or last in _APOSTROPHES) and (_is_letter(first) or first in _APOSTROPHES)


def _is_letter(character: str) -> bool:
    """Tell letters and digits of words that blanks separate; of other scripts every token is a word."""
    is_wide = unicodedata.east_asian_width(character) in "WF"
    return unicodedata.category(character)[0] in "LNM" and not is_wide and not _UNSPACED.match(character)
