"""An adapter as the engine sees it: how it reads documents, what its outputs are called, how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import MODEL_FOR_QUESTION_ANSWERING_MAPPING, PreTrainedTokenizerBase

from foretoken.data.problems import (
    CLASSIFICATION,
    GENERATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from foretoken.errors import AdapterError, ConfigError
from foretoken.inference.predictor import adapter_folder
from foretoken.inference.shared_base import SharedBase
from foretoken.metrics.scaling import Scaling
from foretoken.sentence_encoders import Pool, SentenceEncoder, is_sentence_encoder
from foretoken.serving.bank import BASE, AdapterInfo
from foretoken.training.problems import Problem, make_problem
from foretoken.training.problems.generation import TextGeneration
from foretoken.training.problems.generation_texts import decoder_positions
from foretoken.training.run.card import read_card
from foretoken.training.tokens.encode import EncodeSettings, chosen_max_length, model_max_length, token_rules
from foretoken.tuner.dimensions import takes_global_attention

PREDICTIONS = "predictions.parquet"  # beside a run's adapter
SERVED = (
    CLASSIFICATION,
    REGRESSION,
    TOKEN_CLASSIFICATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    GENERATION,
)


@dataclass(eq=False)
class Adapter:
    """An adapter that answers requests.

    Attributes:
        name: what clients call it.
        key: what the bank calls it: a new one each time that a name is loaded.
        folder: where its files are.
        problem: what it predicts.
        settings: how documents become tokens.
        scaling: of the probabilities, fitted when it was trained; None where none was.
        confidences: of the validation documents, sorted; None where its run is not known.
        method: peft's name of the method.
        bytes: memory that it takes beside the model.
        dtype: of its parameters, as they are kept.
        waiting: requests that need it and are not answered yet.
        ends: the tokens that end the texts that it writes.
        reads_sources: a prompt is a source text, framed as in training.
        is_owned: whether its folder goes when it is removed.
        pool: what vectors of texts are made with of their last states.
        writes_apart: the model reads prompts with an encoder, and its texts have positions of their own.
        most_tokens: of such a text; None for any number.
        last: the token that ends such a text which has as many tokens as are asked for, where the model has one.
        asks_for_global: the model is told which tokens see all others: those of the question (Longformer).
    """

    name: str
    key: str
    folder: Path
    problem: Problem
    settings: EncodeSettings
    scaling: Scaling | None = None
    confidences: np.ndarray | None = None
    method: str = ""
    bytes: int = 0
    dtype: str = ""
    waiting: int = field(default=0, compare=False)
    ends: frozenset[int] = frozenset()
    reads_sources: bool = False
    is_owned: bool = False
    pool: Pool = "mean"
    writes_apart: bool = False
    most_tokens: int | None = None
    last: int | None = None
    asks_for_global: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the outputs, in order; none for regression."""
        return self.problem.labels

    def threshold(self, coverage: float) -> float:
        """Return the confidence that this share of the validation documents has or exceeds.

        Raises:
            ConfigError: the confidences of its validation documents are not known.
        """
        if self.confidences is None:
            raise ConfigError(
                f"coverage: the validation predictions of {self.name!r} are not known; serve its run folder, or give "
                "min_confidence"
            )
        return float(np.quantile(self.confidences, 1 - coverage, method="higher"))


def read_adapter(name: str, key: str, folder: Path, base: SharedBase, info: AdapterInfo) -> Adapter:
    """Return the adapter in a folder that the bank has taken up.

    Raises:
        AdapterError: its problem is none that is served.
    """
    place = adapter_folder(folder)
    card = read_card(place)
    does = {GENERATION: info.writes, QUESTION_ANSWERING: info.answers}
    own = next((name for name, is_own in does.items() if is_own), CLASSIFICATION)
    problem = card.make_problem() or make_problem(own, info.labels)
    if problem.name not in SERVED or any((problem.name == name) != is_own for name, is_own in does.items()):
        raise AdapterError(f"{folder} predicts {problem.name}; the server takes {', '.join(SERVED)}")
    if problem.name == MULTIPLE_CHOICE and len(info.labels) > 1:
        raise AdapterError(f"{folder} has {len(info.labels)} outputs, and choices have one; copy both files again")
    apart = info.writes and bool(base.config.is_encoder_decoder)
    if info.writes and not apart:  # what a prompt leaves of it is for the text
        length = model_max_length(base.config, base.tokenizer)
    elif apart:
        length = chosen_max_length(card.max_length, base.config, base.tokenizer)
    else:
        length = problem.max_length(card.max_length, base.config, base.tokenizer)
    problem = problem if info.writes else problem.for_model(base.config, base.tokenizer)
    reads_sources = isinstance(problem, TextGeneration) and card.problem == GENERATION
    tokenizer, rules, ends = base.tokenizer, token_rules(base.config), base.end_tokens if info.writes else frozenset()
    if isinstance(problem, TextGeneration) and reads_sources:
        problem = problem.for_model(base.config, base.tokenizer)  # encoder-decoders have fewer new tokens
        tokenizer = base.tokenizer_with(problem.new_tokens)
        problem = _posed(problem, folder, base, tokenizer, info)
        ends = frozenset([problem.end_token])
        rules = replace(rules, vocab_size=max(rules.vocab_size or 0, len(tokenizer)))
    return Adapter(
        name=name,
        key=key,
        folder=folder,
        problem=problem,
        settings=EncodeSettings(tokenizer, length, rules, card.recipe.chunks),
        scaling=card.scaling,
        confidences=_confidences(folder / PREDICTIONS, problem, card.scaling),
        method=info.method,
        bytes=info.bytes,
        dtype=info.dtype,
        ends=ends,
        reads_sources=reads_sources,
        asks_for_global=problem.name == QUESTION_ANSWERING and _asks_for_global(base),
        **_texts_apart(base),
    )


def _texts_apart(base: SharedBase) -> dict[str, Any]:
    """Return what adapters of an encoder-decoder say of the texts that it writes."""
    if not (base.config.is_encoder_decoder and base.writes):
        return {}
    positions = decoder_positions(base.config)
    most = None if positions is None else positions - 1  # one is for the token that begins it
    return {"writes_apart": True, "most_tokens": most, "last": base.forced_last_token}


def _asks_for_global(base: SharedBase) -> bool:
    """Tell whether the model is told which tokens see all others when it answers questions."""
    kind: Any = MODEL_FOR_QUESTION_ANSWERING_MAPPING.get(type(base.config), None)
    return kind is not None and takes_global_attention(kind)


def _posed(
    problem: TextGeneration, folder: Path, base: SharedBase, tokenizer: PreTrainedTokenizerBase, info: AdapterInfo
) -> TextGeneration:
    """Return what `foretoken train` has taught an adapter to write, as its model reads it.

    Raises:
        AdapterError: it reads segments, or its new tokens are not those that it has embeddings of.
    """
    if problem.options.segment_embeddings:
        raise AdapterError(f"{folder} reads segments (generation.segment_embeddings), which prompts have none of")
    numbers: Any = tokenizer.convert_tokens_to_ids(list(problem.new_tokens))
    if not info.tokens.issuperset(numbers):
        raise AdapterError(f"{folder} has no embeddings of {', '.join(problem.new_tokens)}; train it again")
    return problem.for_model(base.config, tokenizer)


def frozen_model(base: SharedBase) -> Adapter:
    """Return the pretrained model without an adapter, which has states and no outputs."""
    problem = make_problem(GENERATION if base.writes else REGRESSION, ())
    length, pool = model_max_length(base.config, base.tokenizer), SentenceEncoder().pool
    if is_sentence_encoder(base.source):  # its vectors are those that an adapter for queries alone looks for
        encoder = SentenceEncoder.of(base.source)
        length, pool = min(length, encoder.max_length or length), encoder.pool
    return Adapter(
        name=BASE,
        key=BASE,
        folder=Path(base.source),
        problem=problem,
        settings=EncodeSettings(base.tokenizer, length, token_rules(base.config)),
        ends=base.end_tokens if base.writes else frozenset(),
        pool=pool,
        **_texts_apart(base),
    )


def _confidences(file: Path, problem: Problem, scaling: Scaling | None) -> np.ndarray | None:
    """Return the sorted confidences of a run's validation documents, scaled as the answers are."""
    if not file.is_file() or problem.name != CLASSIFICATION:
        return None
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    columns = [f"prob_{label}" for label in problem.labels]
    try:
        table = pq.read_table(file, columns=columns, filters=[("split", "=", "validation")])
    except (ArrowException, OSError) as error:
        raise AdapterError(f"{file} is damaged or of another run: {error}"[:300]) from error
    if not len(table):
        return None
    outputs = np.column_stack([table[name].to_numpy() for name in columns])
    return np.sort((outputs if scaling is None else scaling.apply(outputs)).max(axis=1))
