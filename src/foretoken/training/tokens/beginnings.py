"""The beginnings of very long texts, if only their first tokens are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

LONG = 1_000_000  # characters; to tokenise many more takes minutes and gigabytes
_CHARACTERS_PER_TOKEN = 8  # more than most languages need
_WHITE_SPACE = " \n\t\r"


@dataclass(frozen=True)
class Beginnings:
    """Texts or their beginnings; ``cut`` has the numbers of the texts that were cut."""

    texts: list[str]
    cut: frozenset[int]


def beginnings(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, wanted: int, end_token: int | None = None
) -> Beginnings:
    """Cut texts of more than a million characters so that their first ``wanted`` tokens stay the same.

    A text is cut before white space, which tokenizers do not read across, and keeps at least twice the wanted tokens.

    Args:
        texts: the texts, of any length.
        tokenizer: the tokenizer.
        wanted: the number of tokens of a text that will be used.
        end_token: a token that does not count.
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
    """Tell whether a text has so many tokens, with as few characters tokenised as possible."""
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
