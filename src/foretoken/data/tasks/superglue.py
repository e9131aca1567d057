"""The records of SuperGLUE (Wang et al. 2019) as labelled texts, in files and on the hub.

The texts are joined as in the release of P-tuning v2 (Liu et al. 2022), which the papers use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretoken.data.documents import Document, Splits
from foretoken.data.examples import ChoiceExample, QuestionExample
from foretoken.data.options import DataOptions
from foretoken.data.readers.hub import PARQUET
from foretoken.data.readers.questions import Span
from foretoken.data.readers.rows import UsableRow, check_columns, filled, text_value, usable
from foretoken.data.readers.tables import read_rows
from foretoken.data.splits import split_off
from foretoken.data.tasks.base import FromRows, HubSource, Reader, from_files, from_hub
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


def _copa(_: str, rows: Iterable[UsableRow]) -> list[ChoiceExample]:
    """Return the premise, followed by ``because`` (which cause?) or ``so`` (which effect?), and the two choices."""
    examples = []
    for number, (where, values) in enumerate(rows):
        joiner = _JOINERS.get(values["question"])
        if joiner is None:
            raise DataError(f"{where}: question {values['question']!r}, expected one of {', '.join(_JOINERS)}")
        if values["label"] not in (0, 1):
            raise DataError(f"{where}: label {values['label']!r}, expected 0 or 1; others cannot be scored")
        premise, *choices = _texts(where, values, "premise", "choice1", "choice2")
        examples.append(ChoiceExample(str(number), f"{premise} {joiner}", tuple(choices), int(values["label"]), where))
    return examples


def _wic(_: str, rows: Iterable[UsableRow]) -> list[Document]:
    """Return both sentences, each after the word in question: ``place: Do you want to come to my place?``."""
    return labelled((_words(row, "{word}: {first}", "{word}: {second}") for row in rows), _TEXTS)


def _wic_question(_: str, rows: Iterable[UsableRow]) -> list[Document]:
    """Return sentences and question in one text: ``... Does place have the same meaning in both sentences?``."""
    asked = "{first} {second} Does {word} have the same meaning in both sentences?"
    return labelled((_words(row, asked) for row in rows), _TEXT)


def _wsc(_: str, rows: Iterable[UsableRow]) -> list[Document]:
    """Return the text with stars around the pronoun, and the noun phrase that it may refer to."""
    return labelled(map(_pronoun, rows), _TEXTS)


def _multirc(_: str, rows: Iterable[UsableRow]) -> list[Document]:
    """Return paragraph and answer of the rows of the hub; the question is the group."""
    return labelled(map(_answer, rows), _ANSWERS)


def _multirc_records(source: str, rows: Iterable[UsableRow]) -> list[Document]:
    """Return the paragraph and every answer to every question about it; the question is the group."""
    return _multirc(source, (answer for row in rows for answer in _answers(row)))


def _record(_: str, rows: Iterable[UsableRow]) -> list[QuestionExample]:
    """Return the queries of the rows of the hub; answers are the mentions whose text is one of the row's answers."""
    examples = []
    for where, values in rows:
        text, spans = filled(where, values["passage"], "passage"), values["entity_spans"]
        check_columns(where, spans, ("text", "start"))
        places = zip(spans["start"], spans["text"], strict=True)
        mentions = tuple(sorted({(start, start + len(name)) for start, name in places}))
        answers = tuple(span for span in mentions if text[slice(*span)] in values["answers"])
        name = f"{values['idx']['passage']}/{values['idx']['query']}"
        examples.append(_query(where, name, values["query"], text, mentions, answers))
    return examples


def _record_records(_: str, rows: Iterable[UsableRow]) -> list[QuestionExample]:
    """Return every query about a passage; its answers are marked entities, and the passage is the group."""
    examples = []
    for where, values in rows:
        check_columns(where, values["passage"], ("text", "entities"))
        text = filled(where, values["passage"]["text"], "text")
        mentions = tuple(sorted({_mention(where, text, span) for span in values["passage"]["entities"]}))
        for query in values["qas"]:
            check_columns(where, query, ("query", "answers", "idx"))
            answers = tuple(dict.fromkeys(_mention(where, text, span) for span in query["answers"]))
            name = f"{values['idx']}/{query['idx']}"
            examples.append(_query(where, name, query["query"], text, mentions, answers))
    return examples


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


def _texts(where: str, values: Mapping[str, object], *names: str) -> list[str]:
    return [text_value(where, values[name], name) for name in names]


def _words(row: UsableRow, *templates: str) -> UsableRow:
    where, values = row
    word, first, second = _texts(where, values, "word", "sentence1", "sentence2")
    texts = [template.format(word=word, first=first, second=second) for template in templates]
    return where, {**dict(zip(("text", "text_pair"), texts, strict=False)), "label": values["label"]}


def _pronoun(row: UsableRow) -> UsableRow:
    where, values = row
    target = values.get("target", values)  # the hub has no 'target' around these
    check_columns(where, target, ("span1_text", "span2_text", "span2_index"))
    (text,) = _texts(where, values, "text")
    noun, pronoun = _texts(where, target, "span1_text", "span2_text")
    marked = _mark(where, text, pronoun, target["span2_index"])
    return where, {"text": marked, "text_pair": noun, "label": values["label"]}


def _mark(where: str, text: str, pronoun: str, index: int) -> str:
    """Return the text with stars around the pronoun in word ``index``, or in the nearest word that has it.

    One published index is wrong by a word.
    """
    places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(pronoun)}(?!\w)", text)]
    if not places:
        raise DataError(f"{where}: the pronoun {pronoun!r} is not in the text")
    start = min(places, key=lambda at: abs(len(f"{text[:at]}x".split()) - 1 - index))
    end = start + len(pronoun)
    return f"{text[:start]}*{text[start:end]}*{text[end:]}"


def _answers(row: UsableRow) -> Iterator[UsableRow]:
    """Yield the answers of a record, as the rows of the hub have them."""
    where, values = row
    passage = values["passage"]
    check_columns(where, passage, ("text", "questions"))
    for question in passage["questions"]:
        for answer in question["answers"]:
            check_columns(where, answer, ("text", "label"))
            idx = {"paragraph": values["idx"], "question": question["idx"], "answer": answer["idx"]}
            texts = {"paragraph": passage["text"], "question": question["question"], "answer": answer["text"]}
            yield where, {**texts, "idx": idx, "label": answer["label"]}


def _answer(row: UsableRow) -> UsableRow:
    where, values = row
    paragraph, question, answer = (values["idx"][name] for name in ("paragraph", "question", "answer"))
    asked = " ".join(_texts(where, values, "question", "answer"))
    numbers = {"id": f"{paragraph}/{question}/{answer}", "group": f"{paragraph}/{question}"}
    return where, {"text": values["paragraph"], "text_pair": asked, "label": values["label"], **numbers}


def _query(
    where: str, name: str, query: object, text: str, mentions: tuple[Span, ...], answers: tuple[Span, ...]
) -> QuestionExample:
    if not answers or not mentions:
        raise DataError(
            f"{where}: query {name!r} has {len(answers)} answers and {len(mentions)} marked entities; records without "
            "any can be neither trained on nor scored"
        )
    asked = filled(where, query, "query").strip()
    return QuestionExample(name, asked, text, answers, where, mentions=mentions, group=name.partition("/")[0])


def _mention(where: str, text: str, span: Mapping[str, Any]) -> Span:
    """Return the first character of a mention and the one after its last; the files have its last."""
    check_columns(where, span, ("start", "end"))
    begin, end = span["start"], span["end"]
    name = span.get("text")
    if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end < len(text)):
        raise DataError(f"{where}: an entity goes from character {begin!r} to {end!r} of {len(text)}")
    if name is not None and text[begin : end + 1] != name:
        raise DataError(f"{where}: characters {begin} to {end} are {text[begin : end + 1]!r}, and not {name!r}")
    return begin, end + 1


_WORDS = ("word", "sentence1", "sentence2", "label")
RECORDS = {
    "copa": Records(("premise", "choice1", "choice2", "question", "label"), _copa),
    "wic": Records(_WORDS, _wic),
    "wic-question": Records(_WORDS, _wic_question),
    "wsc": Records(
        ("text", "target", "label"), _wsc, Records(("text", "span1_text", "span2_text", "span2_index", "label"), _wsc)
    ),
    "multirc": Records(
        ("idx", "passage"), _multirc_records, Records(("paragraph", "question", "answer", "idx", "label"), _multirc)
    ),
    "record": Records(
        ("idx", "passage", "qas"),
        _record_records,
        Records(("passage", "query", "entity_spans", "answers", "idx"), _record),
    ),
}
