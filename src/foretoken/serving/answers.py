"""Questions about a context, and questions with choices of their own, as tasks of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretoken.data.plain_table import PlainTable
from foretoken.data.problems import MULTIPLE_CHOICE, QUESTION_ANSWERING
from foretoken.errors import DataError
from foretoken.serving.adapters import Adapter
from foretoken.serving.errors import WrongTaskError
from foretoken.serving.tasks import Document, Kind, Prepared, check_task
from foretoken.training.problems.question_answering import QuestionAnswering, QuestionCollator
from foretoken.training.tokens.encode import PaddingCollator, TableRow, TokenRow
from foretoken.tuner.bank.heads import GLOBAL


@dataclass(frozen=True)
class Choices(Document):
    """A question as ``text``, and the texts of which one is its answer."""

    choices: tuple[str, ...] = ()

    @property
    def sequences(self) -> int:
        """One for each choice."""
        return len(self.choices)

    @property
    def characters(self) -> int:
        """The question stands before each choice."""
        return len(self.choices) * len(self.text) + sum(map(len, self.choices))


@dataclass(frozen=True)
class Told:
    """What is answered: the fields that ``foretoken predict`` prints, and whether something was cut."""

    values: dict[str, object]
    truncated: bool = False


@dataclass(frozen=True)
class Find:
    """The part of a context, ``document.pair``, that answers the question, ``document.text``."""

    kind: Kind = "logits"

    def prepare(self, adapter: Adapter, document: Document) -> Prepared[Told]:
        """Return the windows of the context, each behind the question; nothing of the context is cut off."""
        check_task(adapter, QUESTION_ANSWERING)
        problem = adapter.problem
        assert isinstance(problem, QuestionAnswering)
        question, context = document.text, document.pair
        if not isinstance(question, str) or context is None:
            raise WrongTaskError(f"{adapter.name!r} reads a question and a context, as texts")
        _refuse_empty(question=question, context=context)
        table = PlainTable({"id": ["1"], "question": [question], "context": [context]})
        row = _only_row(problem.encode(table, adapter.settings)[0])
        collator = QuestionCollator(PaddingCollator(int(adapter.settings.tokenizer.pad_token_id)), has_global=False)
        own, rows = collator([row]), [dict(window) for window in row["sequences"]]
        if adapter.asks_for_global:
            for window in rows:
                length = len(window["input_ids"])
                window[GLOBAL] = [int(place < row["asked"]) for place in range(length)]

        def finish(results: list[Tensor]) -> Told:
            scores = torch.nn.utils.rnn.pad_sequence([result.float() for result in results], batch_first=True)
            found = problem.choose(scores[..., 0], scores[..., 1], own)
            outputs, _ = problem.decode(found.numpy(), None)
            return Told(problem.to_json(outputs, table)[0])

        return Prepared(rows, row["length"], finish)


@dataclass(frozen=True)
class Choose:
    """One of the choices that a question brings along."""

    kind: Kind = "logits"

    def prepare(self, adapter: Adapter, document: Document) -> Prepared[Told]:
        """Return a pair of the question and each choice."""
        check_task(adapter, MULTIPLE_CHOICE)
        problem = adapter.problem
        if not isinstance(document, Choices) or not isinstance(document.text, str):
            raise WrongTaskError(f"{adapter.name!r} reads a question and its choices, as texts")
        if len(document.choices) < 2:
            raise DataError(f"choices: got {len(document.choices)}, expected two or more")
        _refuse_empty(text=document.text, **{f"choice {n}": text for n, text in enumerate(document.choices, 1)})
        table = PlainTable({"id": ["1"], "text": [document.text], "choices": [list(document.choices)]})
        columns, truncation = problem.encode(table, adapter.settings)
        rows: list[TokenRow] = list(columns["sequences"][0])

        def finish(results: list[Tensor]) -> Told:
            logits = np.stack([result.float().numpy()[0] for result in results])
            outputs, _ = problem.decode(logits[None], None)
            return Told(problem.to_json(outputs, table)[0], bool(truncation.truncated))

        return Prepared(rows, columns["length"][0], finish)


def _only_row(columns: dict[str, list[object]]) -> TableRow:
    return {name: values[0] for name, values in columns.items()}


def _refuse_empty(**texts: str) -> None:
    empty: Sequence[str] = [name for name, text in texts.items() if not text.strip()]
    if empty:
        raise DataError(f"the {empty[0]} is empty; expected some text")
