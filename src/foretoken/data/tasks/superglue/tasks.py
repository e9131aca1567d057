"""The tasks of SuperGLUE, and what their records hold."""

from __future__ import annotations

from foretoken.data.problems import MULTIPLE_CHOICE, QUESTION_ANSWERING
from foretoken.data.tasks.base import CLEAN, OFFICIAL, Task
from foretoken.data.tasks.superglue.reading import (
    Format,
    answer_of_multirc,
    answers_of_multirc,
    by_paragraph,
    choices_of_copa,
    entities_of_hub_record,
    entities_of_record,
    hub_of,
    marked_pronoun,
    pair,
    paragraph_of,
    reader_of,
    words_in_context,
    words_in_question,
)

_FILES = "https://dl.fbaipublicfiles.com/glue/superglue/data/v2"
_RESEARCH = "no formal licence; distributed for research"
_FALSE_TRUE = {0: "false", 1: "true"}  # the files have false and true, which equal these keys
_NOT_ENTAILMENT = "not_entailment"
_RTE = {_NOT_ENTAILMENT: _NOT_ENTAILMENT, 1: _NOT_ENTAILMENT, "entailment": "entailment", 0: "entailment"}
_CB = ("entailment", "contradiction", "neutral")


def _task(
    own: Format,
    *,
    title: str,
    summary: str,
    metric: str,
    sizes: str,
    folder: str,
    licence: str,
    grouped: bool = False,
) -> Task:
    return Task(
        name=own.name,
        title=f"{title} (SuperGLUE)",
        summary=summary,
        metric=metric,
        labels=own.classes,
        source=f"{folder}.zip, {_FILES}/{folder}.zip",
        licence=licence,
        hub=hub_of(own),
        reader=reader_of(own),
        problem=own.problem,
        sizes=sizes,
        folder=f"superglue/{folder}",
        splits=(CLEAN, OFFICIAL),
        grouped=grouped,
        validation=by_paragraph if grouped else None,
        fold_group=paragraph_of if grouped else None,
    )


TASKS: tuple[Task, ...] = (
    _task(
        Format("boolq", "boolq", ("question", "passage", "label"), _FALSE_TRUE, pair("question", "passage")),
        title="BoolQ",
        summary="Yes-or-no questions about a passage of Wikipedia.",
        metric="accuracy",
        sizes="9,427 in train and validation / 3,270",
        folder="BoolQ",
        licence="CC BY-SA 3.0",
    ),
    _task(
        Format(
            "copa",
            "copa",
            ("premise", "choice1", "choice2", "question", "label"),
            {},
            choices_of_copa,
            problem=MULTIPLE_CHOICE,
        ),
        title="Choice of Plausible Alternatives",
        summary="Which of two sentences is the cause, or the effect, of a premise? The text is the premise and "
        "'because' or 'so'.",
        metric="accuracy",
        sizes="360 / 40 / 100",
        folder="COPA",
        licence="BSD-2-Clause",
    ),
    _task(
        Format("superglue-rte", "rte", ("premise", "hypothesis", "label"), _RTE, pair("premise", "hypothesis")),
        title="Recognizing Textual Entailment",
        summary="Does a premise entail a hypothesis? The pairs of GLUE's rte.",
        metric="accuracy",
        sizes="2,241 / 249 / 277",
        folder="RTE",
        licence=_RESEARCH,
    ),
    _task(
        Format("wic", "wic", ("word", "sentence1", "sentence2", "label"), _FALSE_TRUE, words_in_context),
        title="Word in Context",
        summary="Does a word mean the same in two sentences? The word and a colon stand before each sentence.",
        metric="accuracy",
        sizes="4,886 / 542 / 638",
        folder="WiC",
        licence="CC BY-NC 4.0",
    ),
    _task(
        Format("wic-question", "wic", ("word", "sentence1", "sentence2", "label"), _FALSE_TRUE, words_in_question),
        title="Word in Context, as a question",
        summary="The same as wic in one text: both sentences, and whether the word has the same meaning in them, as "
        "P-tuning v2 asks RoBERTa.",
        metric="accuracy",
        sizes="4,886 / 542 / 638",
        folder="WiC",
        licence="CC BY-NC 4.0",
    ),
    _task(
        Format(
            "wsc",
            "wsc",
            ("text", "target", "label"),
            _FALSE_TRUE,
            marked_pronoun,
            hub_columns=("text", "span1_text", "span2_text", "span2_index", "label"),
        ),
        title="Winograd Schema Challenge",
        summary="Does a pronoun stand for a noun phrase? The text has stars around the pronoun; the noun phrase is "
        "the second text.",
        metric="accuracy",
        sizes="498 / 56 / 104",
        folder="WSC",
        licence="CC BY 4.0",
    ),
    _task(
        Format(
            "cb",
            "cb",
            ("premise", "hypothesis", "label"),
            {key: name for number, name in enumerate(_CB) for key in (name, number)},
            pair("premise", "hypothesis"),
        ),
        title="CommitmentBank",
        summary="Is the writer of a passage committed to a clause in it? Officially scored by macro F1 and accuracy.",
        metric="f1_macro",
        sizes="224 / 26 / 56",
        folder="CB",
        licence=_RESEARCH,
    ),
    _task(
        Format(
            "multirc",
            "multirc",
            ("idx", "passage"),
            _FALSE_TRUE,
            answers_of_multirc,
            hub_columns=("paragraph", "question", "answer", "idx", "label"),
            convert_hub=answer_of_multirc,
        ),
        title="Multi-Sentence Reading Comprehension",
        summary="Is an answer to a question about a paragraph right? Several may be: F1 is over all answers, exact "
        "match over questions. Validation has paragraphs of its own.",
        metric="f1",
        sizes="24,458 / 2,785 / 4,848",
        folder="MultiRC",
        licence=_RESEARCH,
        grouped=True,
    ),
    _task(
        Format(
            "record",
            "record",
            ("idx", "passage", "qas"),
            {},
            entities_of_record,
            hub_columns=("passage", "query", "entity_spans", "answers", "idx"),
            convert_hub=entities_of_hub_record,
            problem=QUESTION_ANSWERING,
        ),
        title="Reading Comprehension with Commonsense Reasoning",
        summary="Which entity of a news passage does @placeholder stand for in a sentence about it? Answers are among "
        "the marked entities. Officially scored by F1 and exact match.",
        metric="token_f1",
        sizes="100,730 (validation taken from them) / 10,000",
        folder="ReCoRD",
        licence=_RESEARCH,
    ),
)
