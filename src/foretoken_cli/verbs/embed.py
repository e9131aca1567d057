"""`foretoken embed`: write the vectors of texts by a sentence encoder, with an adapter or without."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretoken.options import option
from foretoken_cli.console import described, say
from foretoken_cli.inference import ModelOptions
from foretoken_cli.parser import parse

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EmbedCommand(ModelOptions):
    """The command line of `foretoken embed`."""

    file: Path = option("file of the texts (csv, tsv, jsonl, json, parquet)")
    output: Path = option("file to write: NumPy's .npy, one row of float32 per row of the file")
    side: Literal["query", "passage"] = option(
        "what the texts are: an adapter for queries alone rests while passages are read", "passage"
    )
    column: str | None = option("column of the text (default: query or passage)", None)


def run(words: Sequence[str]) -> int:
    """Embed the texts of a file and print where the vectors are."""
    options = parse(EmbedCommand, "embed", words, described(__doc__))
    import numpy as np

    from foretoken.data.readers.retrieval import read_texts
    from foretoken.files import atomic_file
    from foretoken.inference.retrieval import embed
    from foretoken.training.tokens.encode import describe

    predictor = options.load()
    options.check_result(options.output, predictor, str(options.file))
    texts = read_texts(options.file, options.column or options.side)
    found = embed(
        predictor, texts, options.side, batch_size=options.batch_size, tokens_per_batch=options.tokens_per_batch
    )
    log.info(describe(found.truncation, predictor.max_length))
    with atomic_file(options.output) as temporary, temporary.open("wb") as opened:
        np.save(opened, found.vectors)
    say(options.output)
    return 0
