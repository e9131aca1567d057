"""The built-in tasks of generating text, and the markers in the texts of each."""

from __future__ import annotations

from foretoken.data.problems import GENERATION
from foretoken.data.tasks import coqa, e2e, squality, webnlg
from foretoken.data.tasks.base import CLEAN, OFFICIAL, HubSource, Task
from foretoken.data.tasks.generation import Markers

MARKERS: dict[str, Markers] = {"webnlg": webnlg.MARKERS, "coqa": coqa.MARKERS}

TASKS: tuple[Task, ...] = (
    Task(
        name="webnlg",
        title="WebNLG challenge 2017",
        summary="Text from sets of one to seven triples of DBpedia; the test is also scored by seen and unseen "
        "categories.",
        metric="bleu",
        labels=(),
        source="webnlg_challenge_2017, https://gitlab.com/shimorina/webnlg-dataset (or its copy "
        "https://github.com/fuzihaofzh/webnlg-dataset)",
        licence="CC BY-NC-SA 4.0",
        hub=None,  # the copy there mixes the three test files
        reader=webnlg.read,
        problem=GENERATION,
        sizes="6,940 / 872 / 1,862",
    ),
    Task(
        name="e2e",
        title="E2E NLG challenge",
        summary="A description of a restaurant from its attributes; all references of a meaning representation "
        "together.",
        metric="bleu",
        labels=(),
        source="e2e-dataset.zip, https://github.com/tuetschek/e2e-dataset",
        licence="CC BY-SA 4.0",
        hub=HubSource(e2e.HUB, e2e.read_hub),
        reader=e2e.read,
        problem=GENERATION,
        sizes="4,862 / 547 / 630",
    ),
    Task(
        name="coqa",
        title="CoQA",
        summary="Answers to questions of a conversation about a passage; the official dev set is the test.",
        metric="token_f1",
        labels=(),
        source="coqa-train-v1.0.json, coqa-dev-v1.0.json, https://stanfordnlp.github.io/coqa/",
        licence="mixed by domain: CC BY-SA 4.0, MSR-LA, Apache-2.0, RACE's own, Project Gutenberg",
        hub=HubSource(coqa.HUB, coqa.read_hub),
        reader=coqa.read,
        problem=GENERATION,
        sizes="108,647 (validation taken from them) / 7,983",
        splits=(CLEAN, OFFICIAL),
    ),
    Task(
        name="squality",
        title="SQuALITY",
        summary="Answers of a paragraph to questions about stories of 5,000 words; four references each.",
        metric="rougeL",
        labels=(),
        source="train.jsonl, dev.jsonl, test.jsonl of data/v1-3/txt, https://github.com/nyu-mll/SQuALITY",
        licence="CC BY 4.0; the stories: Project Gutenberg",
        hub=HubSource(squality.HUB, squality.read_hub),
        reader=squality.read,
        problem=GENERATION,
        sizes="250 / 125 / 260",
    ),
)
