"""The places in a document of the tokens that a model reads."""

from __future__ import annotations

from dataclasses import dataclass

from foretoken.training.options import ChunkOptions
from foretoken.training.tokens.beginnings import beginnings
from foretoken.training.tokens.encode import EncodeSettings, TokenRow, kept_places
from foretoken.training.tokens.texts import (
    check_offsets,
    chunk_spans,
    encode_texts,
    pair_places,
    special_frame,
    with_offsets,
)

SPECIAL = -1  # the place of a token that is not of the text


@dataclass(frozen=True)
class Span:
    """A piece of a document: its first character, the one after its last, and 1 for the second text of a pair."""

    start: int
    end: int
    side: int = 0


@dataclass(frozen=True)
class PlacedTokens:
    """The tokens that a model reads of a document, and their places in it.

    Attributes:
        rows: the tokens of the document, or of its chunks.
        spans: the span of each token of the text.
        places: for every token of every row the number of its span, or :data:`SPECIAL`.
    """

    rows: list[TokenRow]
    spans: list[Span]
    places: list[list[int]]


def place_tokens(text: str, pair: str | None, settings: EncodeSettings) -> PlacedTokens:
    """Return the tokens that a model reads of a text or pair, and their places.

    Raises:
        BackboneError: the tokenizer does not tell where its tokens are.
        DataError: the document has no tokens.
    """
    check_offsets(settings)
    columns, _ = encode_texts([text], None if pair is None else [pair], settings)
    rows = columns["sequences"][0]
    if pair is not None and len(rows) > 1:
        return _pair_in_chunks(text, pair, rows, settings)
    if pair is None and settings.chunks is not None and not settings.is_cut:
        return _in_chunks(text, rows, settings, settings.chunks)
    return _whole(text, pair, rows[0], settings)


def _in_chunks(text: str, rows: list[TokenRow], settings: EncodeSettings, options: ChunkOptions) -> PlacedTokens:
    before, after = ([SPECIAL] * len(side) for side in special_frame(settings, text))
    special, most = len(before) + len(after), settings.max_tokens
    begun = text if most is None else beginnings([text], settings.tokenizer, most).texts[0]
    found = zip(*with_offsets(begun, settings), strict=True)
    tokens = [(token, offset) for token, offset in found if token != settings.rules.end_token]
    tokens = tokens if most is None else tokens[: most - special]
    ids, offsets = [token for token, _ in tokens], [offset for _, offset in tokens]
    cuts = chunk_spans(ids, settings.max_length - special, settings, options)
    places = [[*before, *range(start, end), *after] for start, end in cuts]
    return PlacedTokens(rows, [_span(text, *offset) for offset in offsets], places)


def _pair_in_chunks(text: str, pair: str, rows: list[TokenRow], settings: EncodeSettings) -> PlacedTokens:
    options, most = settings.chunks, settings.max_tokens
    assert options is not None
    tokens = settings.tokenizer(text, pair, return_offsets_mapping=True, return_attention_mask=False, verbose=False)
    owners = tokens.sequence_ids(0)
    kept = list(range(len(owners))) if most is None else kept_places(owners, most, "right") or []
    owners = [owners[position] for position in kept]
    in_rows = pair_places(owners, [tokens["input_ids"][position] for position in kept], settings, options)
    of_text = [position for position, owner in enumerate(owners) if owner is not None]
    numbers = {position: number for number, position in enumerate(of_text)}
    places = [[numbers.get(position, SPECIAL) for position in row] for row in in_rows]
    stands = [(owners[position], *tokens["offset_mapping"][kept[position]]) for position in of_text]
    return PlacedTokens(rows, [_span((text, pair)[side], start, end, side) for side, start, end in stands], places)


def _whole(text: str, pair: str | None, row: TokenRow, settings: EncodeSettings) -> PlacedTokens:
    tokenizer, end, length = settings.tokenizer, settings.rules.end_token, len(row["input_ids"])
    texts = [text] if pair is None else [text, pair]
    begun = beginnings(texts, tokenizer, settings.max_length, end).texts
    tokens = tokenizer(*begun, return_offsets_mapping=True, return_attention_mask=False, verbose=False)
    owners, ids = tokens.sequence_ids(0), tokens["input_ids"]
    kept = list(range(len(ids))) if len(ids) <= length else kept_places(owners, length, tokenizer.truncation_side) or []
    if [ids[position] for position in kept] != row["input_ids"]:  # the text contains the end token
        kept = [position for position in range(len(ids)) if ids[position] != end][: length - 1]
    of_text = [position for position in kept if owners[position] is not None]
    numbers = {position: number for number, position in enumerate(of_text)}
    places = [numbers.get(position, SPECIAL) for position in kept]
    offsets = tokens["offset_mapping"]
    stands = [(owners[position], *offsets[position]) for position in of_text]
    spans = [_span(texts[side], start, end, side) for side, start, end in stands]
    return PlacedTokens([row], spans, [places + [SPECIAL] * (length - len(places))])


def _span(text: str, start: int, end: int, side: int = 0) -> Span:
    """Return the span of a token without the blanks around it, unless it is blank."""
    token = text[start:end]
    if token.isspace():
        return Span(start, end, side)
    return Span(end - len(token.lstrip()), start + len(token.rstrip()), side)
