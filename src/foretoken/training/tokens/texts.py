"""Texts, and pairs of texts, as the sequences that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from transformers import BatchEncoding, PreTrainedTokenizerBase

from foretoken.errors import BackboneError, ConfigError
from foretoken.training.options import ChunkOptions
from foretoken.training.tokens.beginnings import Beginnings, beginnings
from foretoken.training.tokens.chunks import sentence_ends, spans
from foretoken.training.tokens.encode import (
    EncodeSettings,
    TokenColumns,
    TokenRow,
    Truncation,
    count_lengths,
    encode,
    kept_places,
    pair_sequences,
    refuse_empty,
    refuse_without_embedding,
    token_sequences,
)


def encode_texts(
    texts: Sequence[str], pairs: Sequence[str] | None, settings: EncodeSettings
) -> tuple[TokenColumns, Truncation]:
    """Return the columns of texts: ``sequences``, the chunks of each, and ``length``, the tokens in its chunks.

    Without ``settings.chunks`` a text is one chunk, cut to ``max_length``.

    Raises:
        DataError: a document has no tokens.
        ConfigError: chunks too small for their overlap.
    """
    if settings.chunks is None or settings.is_cut:
        assert settings.limit is not None
        rows, counts = _cut(texts, pairs, settings, settings.limit)
        sequences = [[row] for row in rows]
    elif pairs is not None:
        sequences, counts = _pairs_in_chunks(texts, pairs, settings, settings.chunks)
    else:
        sequences, counts = _in_chunks(texts, settings, settings.chunks)
    lengths = [sum(len(row["input_ids"]) for row in rows) for rows in sequences]
    return {"sequences": sequences, "length": lengths}, counts


def cut_pairs(
    texts: Sequence[str], pairs: Sequence[str], settings: EncodeSettings
) -> tuple[list[TokenRow], list[int], frozenset[int]]:
    """Return the tokens of pairs, their lengths before the cut, and the pairs whose length is only a lower bound.

    A pair that is too long loses tokens of its longer text.
    """
    first, second = (beginnings(side, settings.tokenizer, settings.max_length) for side in (texts, pairs))
    rows, lengths = pair_sequences(first.texts, second.texts, settings)
    return rows, lengths, first.cut | second.cut


def _cut(
    texts: Sequence[str], pairs: Sequence[str] | None, settings: EncodeSettings, most: int
) -> tuple[list[TokenRow], Truncation]:
    """Return the first tokens of every text or pair, and how many were cut."""
    if pairs is None:
        encoded = encode(texts, settings.tokenizer, max_length=most, rules=settings.rules)
        return [{"input_ids": ids} for ids in encoded.input_ids], encoded.truncation
    rows, lengths, partly = cut_pairs(texts, pairs, replace(settings, max_length=most))
    return rows, count_lengths(lengths, most, len(partly))


def check_overlap(size: int, overlap: int, settings: EncodeSettings) -> None:
    """Raise a ConfigError if chunks with ``size`` tokens of text cannot overlap by ``overlap``."""
    if size <= overlap:
        raise ConfigError(
            f"chunks.overlap is {overlap}, but a chunk holds {size} tokens of text (max_length "
            f"{settings.max_length}, the others are special); lower the overlap or raise max_length"
        )


def _in_chunks(
    texts: Sequence[str], settings: EncodeSettings, options: ChunkOptions
) -> tuple[list[list[TokenRow]], Truncation]:
    """Return the chunks of every text, and how many texts were cut."""
    asked = {"add_special_tokens": False, "verbose": False}
    with_tokens = (text for text in texts if settings.tokenizer(text, **asked)["input_ids"])
    before, after = special_frame(settings, next(with_tokens, texts[0]))
    special = len(before) + len(after)
    size, most = settings.max_length - special, settings.max_tokens
    begun = Beginnings(list(texts), frozenset()) if most is None else beginnings(texts, settings.tokenizer, most)
    end_token = settings.rules.end_token
    bare = token_sequences(begun.texts, settings, may_be_empty=special > 0)
    if end_token is not None:
        bare = [[token for token in ids if token != end_token] for ids in bare]
    rows = [
        [
            {"input_ids": [*before, *ids[start:end], *after]}
            for start, end in chunk_spans(ids if most is None else ids[: most - special], size, settings, options)
        ]
        for ids in bare
    ]
    return rows, count_lengths([len(ids) + special for ids in bare], most, len(begun.cut))


def chunk_spans(
    ids: Sequence[int], size: int, settings: EncodeSettings, options: ChunkOptions
) -> list[tuple[int, int]]:
    """Return begin and end of the chunks of a text; a text that fits is one chunk."""
    if len(ids) <= size:
        return [(0, len(ids))]
    overlap = options.shared(size)
    check_overlap(size, overlap, settings)
    return spans(ids, size, overlap, sentence_ends(settings.tokenizer))


def _pairs_in_chunks(
    texts: Sequence[str], pairs: Sequence[str], settings: EncodeSettings, options: ChunkOptions
) -> tuple[list[list[TokenRow]], Truncation]:
    """Return the chunks of every pair: chunks of its longer text, each with the shorter one or half a chunk of it."""
    tokenizer, most, length = settings.tokenizer, settings.max_tokens, settings.max_length
    sides: list[list[str]] = [list(texts), list(pairs)]
    partly: frozenset[int] = frozenset()
    if most is not None:
        begun = [beginnings(side, tokenizer, most) for side in sides]
        sides, partly = [side.texts for side in begun], begun[0].cut | begun[1].cut
    chunked, lengths, cut = [], [], 0
    for text, other in zip(*sides, strict=True):
        asked = {"return_attention_mask": False, "return_special_tokens_mask": not tokenizer.is_fast, "verbose": False}
        tokens = tokenizer([text], [other], **asked)
        refuse_empty([text], tokens["input_ids"])
        refuse_without_embedding(tokens["input_ids"], settings.rules)
        lengths.append(len(tokens["input_ids"][0]))
        whole = {name: tokens[name][0] for name in ("input_ids", "token_type_ids") if name in tokens}
        if lengths[-1] <= length:
            chunked.append([whole])
            continue
        owners = owners_of(tokens, tokenizer, text)
        if most is not None and len(owners) > most:
            kept = kept_places(owners, most, "right") or []
            owners = [owners[position] for position in kept]
            whole = {name: [values[position] for position in kept] for name, values in whole.items()}
        places = pair_places(owners, whole["input_ids"], settings, options)
        cut += lengths[-1] > (most or lengths[-1]) or len(set().union(*places)) < len(owners)
        chunked.append(
            [{name: [values[position] for position in row] for name, values in whole.items()} for row in places]
        )
    return chunked, replace(count_lengths(lengths, most, len(partly)), truncated=cut)


def owners_of(tokens: BatchEncoding, tokenizer: PreTrainedTokenizerBase, first: str) -> list[int | None]:
    """Return the text that each token of a pair is of: 0 for the first, 1 for the second, None for special tokens."""
    if tokens.is_fast:
        return list(tokens.sequence_ids(0))
    # tokenizers in Python only tell which tokens are special
    count = len(tokenizer(first, add_special_tokens=False, verbose=False)["input_ids"])
    seen = accumulate(not is_special for is_special in tokens["special_tokens_mask"][0])
    of_text = zip(tokens["special_tokens_mask"][0], seen, strict=True)
    return [None if is_special else int(number > count) for is_special, number in of_text]


def pair_places(
    owners: Sequence[int | None], ids: Sequence[int], settings: EncodeSettings, options: ChunkOptions
) -> list[list[int]]:
    """Return the positions of the tokens in each chunk of a pair, given the ``owners`` of its tokens."""
    longer = 0 if owners.count(0) >= owners.count(1) else 1
    long, short = (
        [position for position, owner in enumerate(owners) if owner == side] for side in (longer, 1 - longer)
    )
    room = settings.max_length - owners.count(None)
    short = short[: room // 2]
    always = {*short, *(position for position, owner in enumerate(owners) if owner is None)}
    cuts = chunk_spans([ids[position] for position in long], room - len(short), settings, options)
    return [sorted({*always, *long[begin:end]}) for begin, end in cuts]


def with_offsets(text: str, settings: EncodeSettings) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the tokens of a text, without special ones, and the begin and end of each in the text.

    Raises:
        BackboneError: the tokenizer does not tell where its tokens are, or makes tokens without an embedding.
    """
    check_offsets(settings)
    given = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    tokens = settings.tokenizer(text, return_offsets_mapping=True, **given)
    refuse_without_embedding([tokens["input_ids"]], settings.rules)
    return list(tokens["input_ids"]), list(tokens["offset_mapping"])


def check_offsets(settings: EncodeSettings) -> None:
    """Raise a BackboneError if the tokenizer does not tell where its tokens are."""
    if not settings.tokenizer.is_fast:
        raise BackboneError(
            f"{type(settings.tokenizer).__name__} does not tell where its tokens are in a text, by which words and "
            "answers are found; take a model with a fast tokenizer (one with a tokenizer.json)"
        )


def special_frame(settings: EncodeSettings, text: str) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text; those of encoder-decoders end with the end token."""
    whole = settings.tokenizer(text, return_special_tokens_mask=True, verbose=False)
    ids, special = list(whole["input_ids"]), list(whole["special_tokens_mask"])
    inner = [index for index, is_special in enumerate(special) if not is_special]
    before, after = (ids[: inner[0]], ids[inner[-1] + 1 :]) if inner else (ids, [])
    end = settings.rules.end_token
    return before, [*(token for token in after if token != end), *([] if end is None else [end])]
