"""The tasks of GLUE, and how each one's files are laid out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from foretoken.data.documents import Splits
from foretoken.data.problems import CLASSIFICATION, REGRESSION
from foretoken.data.tasks.base import CLEAN, OFFICIAL, HubSource, Task
from foretoken.data.tasks.glue.reading import HUB, Layout, read_folder, read_hub, read_mrpc, read_stsb

_FILES = "https://dl.fbaipublicfiles.com/glue/data"
_ENTAILMENT = {"not_entailment": "not_entailment", "entailment": "entailment"}
_RTE_ON_HUB = ("entailment", "not_entailment")


def _task(
    layout: Layout,
    *,
    title: str,
    summary: str,
    metric: str,
    sizes: str,
    folder: str,
    source: str,
    licence: str,
    reader: Callable[[Path, Layout], Splits] = read_folder,
) -> Task:
    return Task(
        name=layout.name,
        title=title,
        summary=summary,
        metric=metric,
        labels=layout.classes,
        source=source,
        licence=licence,
        hub=HubSource(HUB, lambda _: read_hub(layout)),
        reader=lambda path, _: reader(path, layout),
        problem=CLASSIFICATION if layout.labels else REGRESSION,
        sizes=sizes,
        folder=f"glue/{folder}",
        splits=(CLEAN, OFFICIAL),
    )


TASKS: tuple[Task, ...] = (
    _task(
        Layout(
            "cola",
            "sentence",
            None,
            {"0": "unacceptable", "1": "acceptable"},
            header=("source", "label", "star", "sentence"),
        ),
        title="Corpus of Linguistic Acceptability (GLUE)",
        summary="English sentences of the linguistics literature, grammatical or not.",
        metric="matthews",
        sizes="7,696 / 855 / 1,043",
        folder="CoLA",
        source=f"CoLA.zip, {_FILES}/CoLA.zip",
        licence="no formal licence; distributed for research",
    ),
    _task(
        Layout("sst2", "sentence", None, {"0": "negative", "1": "positive"}),
        title="Stanford Sentiment Treebank, two classes (GLUE)",
        summary="Sentences and phrases of film reviews, positive or negative.",
        metric="accuracy",
        sizes="60,614 / 6,735 / 872",
        folder="SST-2",
        source=f"SST-2.zip, {_FILES}/SST-2.zip",
        licence="no formal licence; distributed for research",
    ),
    _task(
        Layout(
            "mrpc",
            "#1 String",
            "#2 String",
            {"0": "not_equivalent", "1": "equivalent"},
            label="Quality",
            hub={"#1 String": "sentence1", "#2 String": "sentence2"},
        ),
        title="Microsoft Research Paraphrase Corpus (GLUE)",
        summary="Pairs of sentences from the news that mean the same or not.",
        metric="accuracy_f1",
        sizes="3,668 / 408 / 1,725",
        folder="MRPC",
        source="msr_paraphrase_train.txt and _test.txt, https://dl.fbaipublicfiles.com/senteval/senteval_data/, and "
        "GLUE's dev_ids.tsv",
        licence="Microsoft Research's terms, for research",
        reader=read_mrpc,
    ),
    _task(
        Layout("stsb", "sentence1", "sentence2", {}, label="score"),
        title="Semantic Textual Similarity Benchmark (GLUE)",
        summary="Pairs of sentences, and how much alike they are, from 0 to 5.",
        metric="pearson_spearman",
        sizes="5,749 / 1,500 / 1,379",
        folder="STS-B",
        source=f"STS-B.zip, {_FILES}/STS-B.zip",
        licence="scores CC BY-SA 4.0; texts as LICENSE.txt says",
        reader=read_stsb,
    ),
    _task(
        Layout(
            "qqp",
            "question1",
            "question2",
            {"0": "not_duplicate", "1": "duplicate"},
            label="is_duplicate",
            skip_broken=True,
        ),
        title="Quora Question Pairs (GLUE)",
        summary="Pairs of questions that ask the same or not.",
        metric="accuracy_f1",
        sizes="363,846 in train and validation / 40,430",
        folder="QQP",
        source=f"QQP-clean.zip, {_FILES}/QQP-clean.zip",
        licence="Quora's terms, not for commercial use",
    ),
    _task(
        Layout(
            "mnli",
            "sentence1",
            "sentence2",
            {name: name for name in ("entailment", "neutral", "contradiction")},
            label="gold_label",
            dev={"dev_matched.tsv": "matched", "dev_mismatched.tsv": "mismatched"},
            group="promptID",
            hub={"sentence1": "premise", "sentence2": "hypothesis"},
            hub_dev={"mnli_matched": "matched", "mnli_mismatched": "mismatched"},
        ),
        title="Multi-Genre Natural Language Inference (GLUE)",
        summary="Does a premise entail a hypothesis, contradict it, or neither? Also measured by part: genres that "
        "train has (matched) and others (mismatched). The pairs of one premise stay in one split.",
        metric="accuracy",
        sizes="392,702 in train and validation / 19,647",
        folder="MNLI",
        source=f"MNLI.zip, {_FILES}/MNLI.zip",
        licence="OANC's licence, CC BY 3.0, CC BY-SA 3.0, by source",
    ),
    _task(
        Layout("qnli", "question", "sentence", _ENTAILMENT, hub_labels=_RTE_ON_HUB),
        title="Question Natural Language Inference (GLUE)",
        summary="Does a sentence hold the answer to a question? Made from SQuAD.",
        metric="accuracy",
        sizes="104,743 in train and validation / 5,463",
        folder="QNLI",
        source=f"QNLIv2.zip, {_FILES}/QNLIv2.zip",
        licence="CC BY-SA 4.0",
    ),
    _task(
        Layout("rte", "sentence1", "sentence2", _ENTAILMENT, hub_labels=_RTE_ON_HUB),
        title="Recognizing Textual Entailment (GLUE)",
        summary="Does a premise entail a hypothesis? Joined from RTE 1, 2, 3 and 5.",
        metric="accuracy",
        sizes="2,241 / 249 / 277",
        folder="RTE",
        source=f"RTE.zip, {_FILES}/RTE.zip",
        licence="no formal licence; distributed for research",
    ),
    _task(
        Layout("wnli", "sentence1", "sentence2", {"0": "not_entailment", "1": "entailment"}),
        title="Winograd Natural Language Inference (GLUE)",
        summary="Does a sentence entail the same with its pronoun replaced? The dev set contradicts train on purpose: "
        "always answering with the more frequent class is hard to beat.",
        metric="accuracy",
        sizes="572 / 63 / 71",
        folder="WNLI",
        source=f"WNLI.zip, {_FILES}/WNLI.zip",
        licence="CC BY 4.0",
    ),
)
