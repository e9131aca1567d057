"""Reading the tasks of SuperGLUE (Wang et al. 2019): their official files, and their copy on the hub.

The texts are put together as in the release of P-tuning v2 (Liu et al. 2022), which the papers build on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretoken.data.documents import Document, Example, Splits, refuse_empty
from foretoken.data.examples import ChoiceExample, QuestionExample
from foretoken.data.options import DataOptions
from foretoken.data.problems import CLASSIFICATION
from foretoken.data.readers.hub import PARQUET
from foretoken.data.readers.questions import Span
from foretoken.data.readers.rows import Row, check_columns, filled, text_value
from foretoken.data.readers.tables import read_rows
from foretoken.data.splits import split_off
from foretoken.data.tasks.base import HubSource, Reader, from_files, from_hub
from foretoken.errors import DataError

_JOINERS = {"cause": "because", "effect": "so"}
Convert = Callable[["Format", Row, int], Iterable[Example]]


@dataclass(frozen=True)
class Format:
    """How the records of a task become examples.

    Attributes:
        name: of the task; ``config``: its configuration on the hub.
        columns: what a record of the files must have; ``hub_columns``: of the hub, where that is something else.
        labels: the class of each published label, in order; numbers are the hub's.
        convert: makes the examples of a record of the files; ``convert_hub``: of the hub, where that is another.
    """

    name: str
    config: str
    columns: tuple[str, ...]
    labels: Mapping[Any, str]
    convert: Convert
    hub_columns: tuple[str, ...] | None = None
    convert_hub: Convert | None = None
    problem: str = CLASSIFICATION

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in order; none for multiple choice."""
        return tuple(dict.fromkeys(self.labels.values()))


def reader_of(task: Format) -> Reader:
    """Return the reader of a folder with ``train.jsonl`` and ``val.jsonl``."""
    files = {"train": ("train.jsonl",), "validation": ("val.jsonl",)}
    return from_files(task.name, files, lambda path: _examples(read_rows(path, task.columns), task))


def hub_of(task: Format) -> HubSource:
    """Return the copy of a task on the hub; its test set has no labels there either."""
    own = replace(task, convert=task.convert_hub or task.convert)
    return from_hub(
        "aps/super_glue",
        task.hub_columns or task.columns,
        lambda _, rows: _examples(rows, own),
        config=task.config,
        revision=PARQUET,
        splits=("train", "validation"),
    )


def pair(text: str, text_pair: str) -> Convert:
    """Return the conversion of records that hold a pair of texts under these names."""

    def convert(task: Format, row: Row, number: int) -> Iterator[Document]:
        where, values = row
        yield _document(task, where, number, values[text], values[text_pair], values["label"])

    return convert


def choices_of_copa(task: Format, row: Row, number: int) -> Iterator[ChoiceExample]:
    """Yield the premise, followed by ``because`` (which cause?) or ``so`` (which effect?), and the two choices."""
    where, values = row
    joiner = _JOINERS.get(values["question"])
    if joiner is None:
        raise DataError(f"{where}: question {values['question']!r}, expected one of {', '.join(_JOINERS)}")
    if values["label"] not in (0, 1):
        raise DataError(f"{where}: label {values['label']!r}, expected 0 or 1; records without one cannot be scored")
    premise, *choices = _texts(where, values, "premise", "choice1", "choice2")
    yield ChoiceExample(str(number), f"{premise} {joiner}", tuple(choices), int(values["label"]), where)


def words_in_context(task: Format, row: Row, number: int) -> Iterator[Document]:
    """Yield both sentences, each after the word that is asked for: ``place: Do you want to come over to my place?``."""
    where, values = row
    word, first, second = _texts(where, values, "word", "sentence1", "sentence2")
    yield _document(task, where, number, f"{word}: {first}", f"{word}: {second}", values["label"])


def words_in_question(task: Format, row: Row, number: int) -> Iterator[Document]:
    """Yield sentences and question in one text: ``... Does place have the same meaning in both sentences?``."""
    where, values = row
    word, first, second = _texts(where, values, "word", "sentence1", "sentence2")
    text = f"{first} {second} Does {word} have the same meaning in both sentences?"
    yield replace(_document(task, where, number, text, "", values["label"]), text_pair=None)


def marked_pronoun(task: Format, row: Row, number: int) -> Iterator[Document]:
    """Yield the text with stars around the pronoun, and the noun phrase that it may stand for."""
    where, values = row
    target = values.get("target", values)  # the hub has no 'target' around these
    check_columns(where, target, ("span1_text", "span2_text", "span2_index"))
    (text,) = _texts(where, values, "text")
    noun, pronoun = _texts(where, target, "span1_text", "span2_text")
    yield _document(task, where, number, _mark(where, text, pronoun, target["span2_index"]), noun, values["label"])


def answers_of_multirc(task: Format, row: Row, _: int) -> Iterator[Document]:
    """Yield the paragraph and every answer to every question about it; the question is the group."""
    where, values = row
    passage = values["passage"]
    check_columns(where, passage, ("text", "questions"))
    for question in passage["questions"]:
        for answer in question["answers"]:
            check_columns(where, answer, ("text", "label"))
            numbers = values["idx"], question["idx"], answer["idx"]
            yield _answer(task, where, numbers, passage["text"], question["question"], answer)


def answer_of_multirc(task: Format, row: Row, _: int) -> Iterator[Document]:
    """Yield the one answer that a row of the hub holds."""
    where, values = row
    numbers = tuple(values["idx"][name] for name in ("paragraph", "question", "answer"))
    answer = {"text": values["answer"], "label": values["label"]}
    yield _answer(task, where, numbers, values["paragraph"], values["question"], answer)


def entities_of_record(task: Format, row: Row, _: int) -> Iterator[QuestionExample]:
    """Yield every query about a passage, whose answers are among the marked entities of the passage.

    The ends in the files are those of last characters. The passage is the group.
    """
    where, values = row
    passage = values["passage"]
    check_columns(where, passage, ("text", "entities"))
    text = filled(where, passage["text"], "text")
    mentions = tuple(sorted({_mention(where, text, one) for one in passage["entities"]}))
    for query in values["qas"]:
        check_columns(where, query, ("query", "answers", "idx"))
        answers = tuple(dict.fromkeys(_mention(where, text, one) for one in query["answers"]))
        yield _query(where, f"{values['idx']}/{query['idx']}", query["query"], text, mentions, answers)


def entities_of_hub_record(task: Format, row: Row, _: int) -> Iterator[QuestionExample]:
    """Yield the one query that a row of the hub holds; answers are the mentions that read as one of its answers."""
    where, values = row
    text, spans = filled(where, values["passage"], "passage"), values["entity_spans"]
    check_columns(where, spans, ("text", "start"))
    places = zip(spans["start"], spans["text"], strict=True)
    mentions = tuple(sorted({(start, start + len(name)) for start, name in places}))
    answers = tuple(span for span in mentions if text[slice(*span)] in values["answers"])
    name = f"{values['idx']['passage']}/{values['idx']['query']}"
    yield _query(where, name, values["query"], text, mentions, answers)


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
    """Return the first character of a mention and the one after its last."""
    check_columns(where, span, ("start", "end"))
    begin, end = span["start"], span["end"]
    name = span.get("text")
    if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end < len(text)):
        raise DataError(f"{where}: an entity goes from character {begin!r} to {end!r} of {len(text)}")
    if name is not None and text[begin : end + 1] != name:
        raise DataError(f"{where}: characters {begin} to {end} are {text[begin : end + 1]!r}, and not {name!r}")
    return begin, end + 1


def _answer(
    task: Format, where: str, numbers: tuple[object, ...], text: str, question: str, answer: Mapping[str, object]
) -> Document:
    (answer_text,) = _texts(where, answer, "text")
    document = _document(task, where, 0, text, f"{question} {answer_text}", answer["label"])
    paragraph, number, own = numbers
    return replace(document, id=f"{paragraph}/{number}/{own}", group=f"{paragraph}/{number}")


def _document(task: Format, where: str, number: int, text: object, text_pair: object, label: object) -> Document:
    if not isinstance(label, (str, int)) or label not in task.labels:
        raise DataError(
            f"{where}: label {label!r}, expected one of {', '.join(map(repr, task.labels))}; records without a "
            "label can be neither trained on nor scored"
        )
    texts = text_value(where, text, "text"), text_value(where, text_pair, "text_pair")
    return Document(str(number), texts[0], task.labels[label], where, text_pair=texts[1])


def _texts(where: str, values: Mapping[str, object], *names: str) -> list[str]:
    return [text_value(where, values[name], name) for name in names]


def _mark(where: str, text: str, pronoun: str, index: int) -> str:
    """Return the text with stars around the pronoun in the word of that number, or the nearest word that has it.

    One published index is off by a word.
    """
    places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(pronoun)}(?!\w)", text)]
    if not places:
        raise DataError(f"{where}: the pronoun {pronoun!r} is not in the text")
    start = min(places, key=lambda place: abs(len(f"{text[:place]}x".split()) - 1 - index))
    end = start + len(pronoun)
    return f"{text[:start]}*{text[start:end]}*{text[end:]}"


def _examples(rows: Iterable[Row], task: Format) -> list[Example]:
    examples = [example for number, row in enumerate(rows) for example in task.convert(task, row, number)]
    refuse_empty([example for example in examples if isinstance(example, Document)])
    return examples


def paragraph_of(document: Document) -> str:
    """Return the number of the paragraph that an answer of MultiRC belongs to."""
    return document.id.partition("/")[0]


def by_paragraph(train: Sequence[Document], options: DataOptions) -> Splits:
    """Return train and a validation split of other paragraphs: their questions have much in common."""
    home = {document.id: document for document in train}
    whole = [replace(document, group=paragraph_of(document)) for document in train]
    rest, parts = split_off(whole, {"validation": options.validation_fraction}, options.split_seed)
    splits = {"train": rest, **parts}
    return {split: [home[document.id] for document in documents] for split, documents in splits.items()}
