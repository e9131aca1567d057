"""Texts, and pairs of texts, as the sequences that a model reads."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.errors import BackboneError, ConfigError
from foretoken.training.tokens.beginnings import Beginnings, beginnings
from foretoken.training.tokens.chunks import spans
from foretoken.training.tokens.encode import (
    EncodeSettings,
    TokenColumns,
    TokenRow,
    Truncation,
    count_lengths,
    encode,
    pair_sequences,
    refuse_without_embedding,
    token_sequences,
)


def encode_texts(
    texts: Sequence[str], pairs: Sequence[str] | None, settings: EncodeSettings
) -> tuple[TokenColumns, Truncation]:
    """Return the columns of texts: ``input_ids`` (``token_type_ids``), or ``sequences`` of chunks, and ``length``.

    Raises:
        DataError: a document has no tokens.
        ConfigError: chunks of pairs, or chunks too small for their overlap.
    """
    if settings.chunks is not None:
        return _in_chunks(texts, pairs, settings)
    if pairs is not None:
        return _pairs(texts, pairs, settings)
    encoded = encode(texts, settings.tokenizer, max_length=settings.max_length, rules=settings.rules)
    lengths = [len(ids) for ids in encoded.input_ids]
    return {"input_ids": encoded.input_ids, "length": lengths}, encoded.truncation


def cut_pairs(
    texts: Sequence[str], pairs: Sequence[str], settings: EncodeSettings
) -> tuple[list[TokenRow], list[int], frozenset[int]]:
    """Return the tokens of pairs, how many each had, and for which that is only a lower bound.

    What is too long loses tokens of its longer text. Where both are of more than a million characters, either may keep
    the one token more that it has of an odd number.
    """
    first, second = (beginnings(side, settings.tokenizer, settings.max_length) for side in (texts, pairs))
    rows, lengths = pair_sequences(first.texts, second.texts, settings)
    return rows, lengths, first.cut | second.cut


def _pairs(texts: Sequence[str], pairs: Sequence[str], settings: EncodeSettings) -> tuple[TokenColumns, Truncation]:
    rows, lengths, partly = cut_pairs(texts, pairs, settings)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    counts = count_lengths(lengths, settings.max_length, len(partly))
    return columns | {"length": [len(ids) for ids in columns["input_ids"]]}, counts


def _in_chunks(
    texts: Sequence[str], pairs: Sequence[str] | None, settings: EncodeSettings
) -> tuple[TokenColumns, Truncation]:
    options = settings.chunks
    assert options is not None
    with_tokens = (
        text for text in texts if settings.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    )
    before, after = special_frame(settings, next(with_tokens, texts[0]))
    special = len(before) + len(after)
    size = settings.max_length - special
    if pairs is not None:
        raise ConfigError("chunks are of single texts, and these data are pairs of texts; leave out `chunks`")
    if size <= options.overlap:
        raise ConfigError(
            f"chunks.overlap is {options.overlap}, but a chunk holds {size} tokens of text (max_length "
            f"{settings.max_length}, {special} of them special); lower the overlap or raise max_length"
        )
    most = None if options.at_most is None else special + size + (options.at_most - 1) * (size - options.overlap)
    begun = Beginnings(list(texts), frozenset()) if most is None else beginnings(texts, settings.tokenizer, most)
    bare = token_sequences(begun.texts, settings, may_be_empty=special > 0)  # then read as without chunks
    cuts = [spans(len(ids), size, options.overlap, options.at_most) for ids in bare]
    sequences = [
        [{"input_ids": [*before, *ids[start:end], *after]} for start, end in places]
        for ids, places in zip(bare, cuts, strict=True)
    ]
    columns: TokenColumns = {
        "sequences": sequences,
        "length": [sum(len(chunk["input_ids"]) for chunk in row) for row in sequences],
    }
    return columns, count_lengths([len(ids) + special for ids in bare], most, len(begun.cut))


def with_offsets(text: str, settings: EncodeSettings) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the tokens of a text, without special ones, and where each begins and ends in it.

    Raises:
        BackboneError: the tokenizer does not tell where its tokens are, or makes tokens without an embedding.
    """
    check_offsets(settings)
    given = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    found = settings.tokenizer(text, return_offsets_mapping=True, **given)
    refuse_without_embedding([found["input_ids"]], settings.rules)
    return list(found["input_ids"]), list(found["offset_mapping"])


def check_offsets(settings: EncodeSettings) -> None:
    """Raise a BackboneError where the tokenizer does not tell where its tokens are."""
    if not settings.tokenizer.is_fast:
        raise BackboneError(
            f"{type(settings.tokenizer).__name__} does not tell where its tokens are in a text, by which words and "
            "answers are found; take a model with a fast tokenizer (one with a tokenizer.json)"
        )


def special_frame(settings: EncodeSettings, text: str) -> tuple[list[int], list[int]]:
    """Return the tokens that the tokenizer puts before and after a text; encoder-decoders end with their end token."""
    whole = settings.tokenizer(text, return_special_tokens_mask=True, verbose=False)
    ids, special = list(whole["input_ids"]), list(whole["special_tokens_mask"])
    own = [index for index, is_special in enumerate(special) if not is_special]
    before, after = (ids[: own[0]], ids[own[-1] + 1 :]) if own else (ids, [])
    end = settings.rules.end_token
    return before, [*(token for token in after if token != end), *([] if end is None else [end])]
