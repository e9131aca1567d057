"""The beginnings of very long texts, where no more than their first tokens are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

LONG = 1_000_000  # characters; to tokenise many more takes minutes and gigabytes
_CHARACTERS_PER_TOKEN = 8  # more than most languages need
_WHITE_SPACE = " \n\t\r"


@dataclass(frozen=True)
class Beginnings:
    """Texts, or as much of them as is wanted; ``cut`` has the numbers of those that lost their end."""

    texts: list[str]
    cut: frozenset[int]


def beginnings(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, wanted: int, end_token: int | None = None
) -> Beginnings:
    """Return texts with the same first ``wanted`` tokens; those of more than a million characters lose their end.

    A text is cut before white space and keeps at least twice the tokens that are wanted. Tokenizers treat what white
    space separates by itself, so what is cut off cannot change them; where there is no white space at all in half a
    million characters, it is that distance which keeps them apart.

    Args:
        texts: of any length.
        tokenizer: what makes tokens of them.
        wanted: how many tokens of a text will be used.
        end_token: is not among those, wherever it stands.
    """
    kept = [text if len(text) <= LONG else _beginning(text, tokenizer, wanted, end_token) for text in texts]
    pairs = zip(texts, kept, strict=True)
    return Beginnings(kept, frozenset(number for number, (text, part) in enumerate(pairs) if len(part) < len(text)))


def _beginning(text: str, tokenizer: PreTrainedTokenizerBase, wanted: int, end_token: int | None) -> str:
    size = LONG
    while size < len(text):
        part = text[: _place_to_cut(text, size)]
        if _has_tokens(part, tokenizer, 2 * wanted, end_token):
            return part
        size *= 8
    return text


def _has_tokens(text: str, tokenizer: PreTrainedTokenizerBase, wanted: int, end_token: int | None) -> bool:
    """Tell whether a text has so many tokens; mostly its first characters have them, and only these are tokenised."""
    size = min(len(text), _CHARACTERS_PER_TOKEN * wanted)
    while True:
        part = text if size >= len(text) else text[: _place_to_cut(text, size)]
        ids = tokenizer(part, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        if sum(token != end_token for token in ids) >= wanted:
            return True
        if size >= len(text):
            return False
        size *= 8


def _place_to_cut(text: str, size: int) -> int:
    space = max(text.rfind(character, size // 2, size) for character in _WHITE_SPACE)
    return space if space > 0 else size
