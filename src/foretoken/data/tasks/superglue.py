"""The records of SuperGLUE (Wang et al. 2019) as labelled texts, in files and on the hub.

The texts are joined as in the release of P-tuning v2 (Liu et al. 2022), which the papers use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretoken.data.documents import Document, Splits
from foretoken.data.examples import ChoiceExample, QuestionExample
from foretoken.data.options import DataOptions
from foretoken.data.readers.hub import PARQUET
from foretoken.data.readers.questions import Span
from foretoken.data.readers.rows import UsableRow, filled, text_value, usable
from foretoken.data.readers.tables import read_rows
from foretoken.data.splits import split_off
from foretoken.data.tasks.base import FromRows, HubSource, Reader, examples_of, from_files, from_hub
from foretoken.data.tasks.glue import Columns, labelled, published
from foretoken.errors import DataError


@dataclass(frozen=True)
class Records:
    """How the records of a task become examples.

    Attributes:
        needed: the fields that a record must have.
        examples: function that returns the examples of a split, given the name of its source and its records.
        on_hub: the same for the rows on the hub, if they have another form.
    """

    needed: Sequence[str]
    examples: FromRows
    on_hub: Records | None = None

    def reader(self, task: str) -> Reader:
        """Return the reader of a folder."""
        files = {"train": "train.jsonl", "validation": "val.jsonl"}
        return from_files(task, files, lambda file: self.examples(str(file), usable(read_rows(file, self.needed))))

    def hub(self, config: str) -> HubSource:
        """Return the copy on the hub, without its test set, which has no labels."""
        form, splits = self.on_hub or self, ("train", "validation")
        return from_hub("aps/super_glue", form.needed, form.examples, config=config, revision=PARQUET, splits=splits)


def records_of(labels: Mapping[str | int, str], text: str, text_pair: str) -> Records:
    """Return records of a pair of texts with these field names."""
    columns = Columns(text, text_pair, labels=labels)
    return Records(columns.needed, lambda _, rows: labelled(rows, columns))


_JOINERS = {"cause": "because", "effect": "so"}
# the files have false and true, which are equal to 0 and 1
_TEXTS = Columns("text", "text_pair", labels=published(("false", "true")))
_TEXT = replace(_TEXTS, text_pair=None)
_ANSWERS = replace(_TEXTS, id="id", group="group")
_Values = Mapping[str, Any]


def _changed(needed: Sequence[str], columns: Columns, change: Callable[[_Values], _Values]) -> Records:
    """Return records that a function changes to texts with a label."""
    return Records(needed, lambda _, rows: labelled(rows, columns, change=change))


def _copa(_: str, rows: Iterable[UsableRow]) -> list[ChoiceExample]:
    """Return the premise, followed by ``because`` (which cause?) or ``so`` (which effect?), and the two choices."""

    def question(where: str, values: _Values, number: int) -> Iterator[ChoiceExample]:
        premise, *choices = (text_value(where, values[name], name) for name in ("premise", "choice1", "choice2"))
        text = f"{premise} {_JOINERS[values['question']]}"
        yield ChoiceExample(str(number), text, tuple(choices), int(values["label"]), where)

    return examples_of(rows, question)


def _wic(values: _Values) -> _Values:
    """Return both sentences, each after the word in question: ``place: Do you want to come to my place?``."""
    first, second = (f"{values['word']}: {values[name]}" for name in ("sentence1", "sentence2"))
    return {"text": first, "text_pair": second, "label": values["label"]}


def _wic_question(values: _Values) -> _Values:
    """Return sentences and question in one text: ``... Does place have the same meaning in both sentences?``."""
    asked = f"Does {values['word']} have the same meaning in both sentences?"
    return {"text": f"{values['sentence1']} {values['sentence2']} {asked}", "label": values["label"]}


def _wsc(values: _Values) -> _Values:
    """Return the text with stars around the pronoun, and the noun phrase that it may refer to."""
    target = values.get("target", values)  # the hub has no 'target' around these
    text = _mark(values["text"], target["span2_text"], target["span2_index"])
    return {"text": text, "text_pair": target["span1_text"], "label": values["label"]}


def _mark(text: str, pronoun: str, index: int) -> str:
    """Return the text with stars around the pronoun in word ``index``, or in the nearest word that has it.

    One published index is wrong by a word.
    """
    places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(pronoun)}(?!\w)", text)]
    start = min(places, key=lambda at: abs(len(f"{text[:at]}x".split()) - 1 - index))
    end = start + len(pronoun)
    return f"{text[:start]}*{text[start:end]}*{text[end:]}"


def _multirc(values: _Values) -> _Values:
    """Return paragraph, question and answer of the rows of the hub; the question is the group."""
    paragraph, question, answer = (values["idx"][name] for name in ("paragraph", "question", "answer"))
    numbers = {"id": f"{paragraph}/{question}/{answer}", "group": f"{paragraph}/{question}"}
    asked = f"{values['question']} {values['answer']}"
    return {"text": values["paragraph"], "text_pair": asked, "label": values["label"], **numbers}


def _multirc_records(_: str, rows: Iterable[UsableRow]) -> list[Document]:
    """Return the paragraph and every answer to every question about it; the question is the group."""
    return labelled((answer for row in rows for answer in _answers(*row)), _ANSWERS, change=_multirc)


def _answers(where: str, values: _Values) -> Iterator[UsableRow]:
    """Yield the answers of a record, as the rows of the hub have them."""
    for question in values["passage"]["questions"]:
        for answer in question["answers"]:
            idx = {"paragraph": values["idx"], "question": question["idx"], "answer": answer["idx"]}
            texts = {"paragraph": values["passage"]["text"], "question": question["question"], "answer": answer["text"]}
            yield where, {**texts, "idx": idx, "label": answer["label"]}


def _record(_: str, rows: Iterable[UsableRow]) -> list[QuestionExample]:
    """Return the queries of the rows of the hub; answers are the mentions whose text is one of the row's answers."""

    def query(where: str, values: _Values, _: int) -> Iterator[QuestionExample]:
        text, spans = values["passage"], values["entity_spans"]
        places = zip(spans["start"], spans["text"], strict=True)
        mentions = tuple(sorted({(start, start + len(name)) for start, name in places}))
        answers = tuple(span for span in mentions if text[slice(*span)] in values["answers"])
        passage = values["idx"]["passage"]
        yield _query(where, passage, values["idx"]["query"], values["query"], text, mentions, answers)

    return examples_of(rows, query)


def _record_records(_: str, rows: Iterable[UsableRow]) -> list[QuestionExample]:
    """Return every query about a passage; its answers are marked entities, and the passage is the group."""

    def queries(where: str, values: _Values, _: int) -> Iterator[QuestionExample]:
        text = values["passage"]["text"]
        mentions = tuple(sorted(set(map(_mention, values["passage"]["entities"]))))
        for query in values["qas"]:
            answers = tuple(dict.fromkeys(map(_mention, query["answers"])))
            yield _query(where, values["idx"], query["idx"], query["query"], text, mentions, answers)

    return examples_of(rows, queries)


def _query(
    where: str, passage: int, number: int, query: str, text: str, mentions: tuple[Span, ...], answers: tuple[Span, ...]
) -> QuestionExample:
    if not answers:
        raise DataError(f"{where}: query {number} has no answer, and can be neither trained on nor scored")
    asked = filled(where, query, "query").strip()
    name = f"{passage}/{number}"
    return QuestionExample(name, asked, text, answers, where, mentions=mentions, group=str(passage))


def _mention(span: Mapping[str, Any]) -> Span:
    """Return the first character of a mention and the one after its last; the files have its last."""
    return span["start"], span["end"] + 1


def paragraph_of(document: Document) -> str:
    """Return the number of the paragraph that an answer of MultiRC belongs to."""
    return document.id.partition("/")[0]


def by_paragraph(train: Sequence[Document], options: DataOptions) -> Splits:
    """Return train and a validation split of other paragraphs, since questions on one paragraph are similar."""
    home = {document.id: document for document in train}
    whole = [replace(document, group=paragraph_of(document)) for document in train]
    rest, parts = split_off(whole, {"validation": options.validation_fraction}, options.split_seed)
    splits = {"train": rest, **parts}
    return {split: [home[document.id] for document in documents] for split, documents in splits.items()}


_WORDS = ("word", "sentence1", "sentence2", "label")
RECORDS = {
    "copa": Records(("premise", "choice1", "choice2", "question", "label"), _copa),
    "wic": _changed(_WORDS, _TEXTS, _wic),
    "wic-question": _changed(_WORDS, _TEXT, _wic_question),
    "wsc": replace(
        _changed(("text", "target", "label"), _TEXTS, _wsc),
        on_hub=_changed(("text", "span1_text", "span2_text", "span2_index", "label"), _TEXTS, _wsc),
    ),
    "multirc": Records(
        ("idx", "passage"),
        _multirc_records,
        _changed(("paragraph", "question", "answer", "idx", "label"), _ANSWERS, _multirc),
    ),
    "record": Records(
        ("idx", "passage", "qas"),
        _record_records,
        Records(("passage", "query", "entity_spans", "answers", "idx"), _record),
    ),
}
