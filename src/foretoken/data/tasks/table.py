"""The built-in tasks: the one table of them, which options each has, and where their raw data are looked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from foretoken.data.options import CLEAN, DataOptions, given_options
from foretoken.data.problems import (
    CANDIDATES,
    CLASSIFICATION,
    GENERATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from foretoken.data.readers.conll import read_tagged
from foretoken.data.readers.files import is_there, local_path
from foretoken.data.readers.hub import PARQUET
from foretoken.data.readers.questions import questions_from_rows, read_squad
from foretoken.data.readers.rows import ColumnNames
from foretoken.data.readers.user_data import candidates_from_rows
from foretoken.data.tasks import arxiv, coqa, e2e, hyperpartisan, ner, newsgroups, pydocs, squality, superglue, webnlg
from foretoken.data.tasks.base import OFFICIAL, HubSource, Task, from_files, from_hub, from_tables
from foretoken.data.tasks.glue import HUB, Columns, named, numbered, read_glue, read_glue_on_hub
from foretoken.data.tasks.superglue import Records, records_of
from foretoken.errors import DataError, MissingDataError, did_you_mean, quoted
from foretoken.left import TASKS as LEFT

DATA_VARIABLE = "FORETOKEN_DATA"

_RESEARCH = "no formal licence; distributed for research"
_GLUE = "https://dl.fbaipublicfiles.com/glue"
_BOTH = (CLEAN, OFFICIAL)
_NOT = "not_entailment"
_ENTAILMENT = {_NOT: _NOT, 1: _NOT, "entailment": "entailment", 0: "entailment"}  # the hub has them the other way round
_NLI = ("entailment", "neutral", "contradiction")
_DEV: dict[str, str | None] = {"dev.tsv": None}


def _glue(
    name: str,
    folder: str,
    title: str,
    summary: str,
    sizes: str,
    columns: Columns,
    *,
    metric: str = "accuracy",
    licence: str = _RESEARCH,
    source: str | None = None,
    dev: Mapping[str, str | None] = _DEV,
) -> Task:
    return Task(
        name=name,
        title=f"{title} (GLUE)",
        summary=summary,
        metric=metric,
        sizes=sizes,
        source=source or f"{folder}.zip, {_GLUE}/data/{folder}.zip",
        licence=licence,
        reader=lambda path, _: read_glue(path, name, columns, dev),
        hub=HubSource(HUB, lambda _: read_glue_on_hub(name, columns, dev)),
        labels=columns.classes,
        problem=CLASSIFICATION if columns.labels else REGRESSION,
        folder=f"glue/{folder.removesuffix('-clean').removesuffix('v2')}",
        splits=_BOTH,
    )


def _superglue(
    name: str,
    folder: str,
    title: str,
    summary: str,
    sizes: str,
    records: Records,
    *,
    problem: str = CLASSIFICATION,
    metric: str = "accuracy",
    licence: str = _RESEARCH,
    grouped: bool = False,
) -> Task:
    hub = from_hub(
        "aps/super_glue",
        (records.on_hub or records).needed,
        (records.on_hub or records).examples,
        config=folder.lower(),
        revision=PARQUET,
        splits=("train", "validation"),
    )
    return Task(
        name=name,
        title=f"{title} (SuperGLUE)",
        summary=summary,
        metric=metric,
        sizes=sizes,
        source=f"{folder}.zip, {_GLUE}/superglue/data/v2/{folder}.zip",
        licence=licence,
        reader=from_tables(name, "train.jsonl", "val.jsonl", records.needed, records.examples),
        hub=hub,
        labels=records.labels,
        problem=problem,
        folder=f"superglue/{folder}",
        splits=_BOTH,
        grouped=grouped,
        validation=superglue.by_paragraph if grouped else None,
        fold_group=superglue.paragraph_of if grouped else None,
    )


def _wikihop(name: str, title: str, config: str, ending: str, told: str = "") -> Task:
    columns = ColumnNames(problem=CANDIDATES)
    examples = partial(candidates_from_rows, columns=columns)
    return Task(
        name=name,
        title=title,
        summary=f"Questions whose answer needs several Wikipedia paragraphs, with candidate answers.{told}",
        metric="accuracy",
        sizes="39,364 / 4,374 / 5,129",
        source=f"train{ending}, dev{ending} of qangaroo_v1.1.zip, https://qangaroo.cs.ucl.ac.uk",
        licence="CC BY-SA 3.0",
        reader=from_tables(name, f"train{ending}", f"dev{ending}", columns.needed, examples),
        hub=from_hub("community-datasets/qangaroo", columns.needed, examples, config=config),
        problem=CANDIDATES,
        folder="qangaroo_v1.1/wikihop",
        splits=_BOTH,
    )


def _squad(name: str, version: str, hub: str, summary: str, sizes: str) -> Task:
    columns = ColumnNames(problem=QUESTION_ANSWERING)
    files = {"train": f"train-{version}.json", "validation": f"dev-{version}.json"}
    return Task(
        name=name,
        title=f"SQuAD {version}",
        summary=summary,
        metric="token_f1",
        sizes=sizes,
        source=f"{', '.join(files.values())}, https://rajpurkar.github.io/SQuAD-explorer/",
        licence="CC BY-SA 4.0",
        reader=from_files(name, files, read_squad),
        hub=from_hub(hub, columns.needed, partial(questions_from_rows, columns=columns)),
        problem=QUESTION_ANSWERING,
        folder="squad",
        splits=_BOTH,
    )


_TASKS: tuple[Task, ...] = (
    Task(
        name="pydocs",
        title="Documentation of scientific Python packages",
        summary="Long documents made from installed docstrings, labelled by topic; names of packages, "
        "modules and topics are masked. Needs no download; the documents follow the installed versions.",
        metric="f1_macro",
        sizes="by the installed versions",
        source="the packages that foretoken depends on",
        licence="the documentation's own: BSD-3-Clause and Apache-2.0",
        reader=lambda *_: pydocs.documents(),
        labels=tuple(sorted(pydocs.SOURCES)),
        needs_raw=False,
        fold_group=lambda document: document.id.rpartition("#")[0],  # the source file
    ),
    Task(
        name="20newsgroups",
        title="20 Newsgroups",
        summary="Usenet posts of 1993 in twenty groups; the official split by date, without headers, signatures and "
        "quotes.",
        metric="accuracy",
        sizes="9,912 / 1,102 / 7,317",
        source="20news-bydate.tar.gz, http://qwone.com/~jason/20Newsgroups/",
        licence=_RESEARCH,
        reader=newsgroups.read,
        hub=from_hub(
            "SetFit/20_newsgroups", newsgroups.HUB_COLUMNS.needed, newsgroups.from_rows, check=newsgroups.check_hub
        ),
        labels=newsgroups.LABELS,
        splits=(CLEAN, newsgroups.SIXTY, newsgroups.HALVED),
        options=("remove",),
    ),
    Task(
        name="hyperpartisan",
        title="Hyperpartisan News Detection",
        summary="645 news articles judged hyperpartisan or not (SemEval-2019 task 4, by article).",
        metric="f1",
        sizes="514 / 65 / 66",
        source="articles- and ground-truth-training-byarticle-20181122.xml, https://zenodo.org/record/1489920",
        licence="CC BY 4.0",
        reader=hyperpartisan.read,
        hub=from_hub(
            "hyperpartisan_news_detection",
            hyperpartisan.HUB_COLUMNS.needed,
            hyperpartisan.from_rows,
            config="byarticle",
            check=hyperpartisan.check_hub,
        ),
        labels=hyperpartisan.LABELS,
        splits=(CLEAN, hyperpartisan.PUBLISHED, hyperpartisan.ON_VALIDATION),
    ),
    Task(
        name="arxiv",
        title="ArXiv-11 (no_ref)",
        summary="Whole papers in eleven subjects; the subjects' names are taken out of the texts.",
        metric="f1_micro",
        sizes="28,388 / 2,500 / 2,500",
        source=f"train_data.txt, val_data.txt, test_data.txt, https://huggingface.co/datasets/{arxiv.HUB}",
        licence="the authors' own, by paper; distributed for research",
        reader=arxiv.read,
        hub=from_hub(arxiv.HUB, arxiv.COLUMNS.needed, arxiv.from_rows, config="no_ref", revision=PARQUET),
        labels=arxiv.LABELS,
    ),
    _wikihop("wikihop", "WikiHop", "wikihop", ".json"),
    _wikihop(
        "wikihop-masked",
        "WikiHop, masked",
        "masked_wikihop",
        ".masked.json",
        " Candidates are replaced by ___MASK<number>___ in all texts.",
    ),
    _glue(
        "cola",
        "CoLA",
        "Corpus of Linguistic Acceptability",
        "English sentences of the linguistics literature, grammatical or not.",
        "7,696 / 855 / 1,043",
        Columns(
            "sentence",
            labels=numbered("unacceptable", "acceptable"),
            header=("source", "label", "star", "sentence"),
        ),
        metric="matthews",
    ),
    _glue(
        "sst2",
        "SST-2",
        "Stanford Sentiment Treebank, two classes",
        "Sentences and phrases of film reviews, positive or negative.",
        "60,614 / 6,735 / 872",
        Columns("sentence", labels=numbered("negative", "positive")),
    ),
    _glue(
        "mrpc",
        "MRPC",
        "Microsoft Research Paraphrase Corpus",
        "Pairs of sentences from the news that mean the same or not.",
        "3,668 / 408 / 1,725",
        Columns(
            "#1 String",
            "#2 String",
            "Quality",
            numbered("not_equivalent", "equivalent"),
            on_hub=("sentence1", "sentence2"),
        ),
        metric="accuracy_f1",
        source="msr_paraphrase_train.txt and _test.txt, https://dl.fbaipublicfiles.com/senteval/senteval_data/, and "
        "GLUE's dev_ids.tsv",
        licence="Microsoft Research's terms, for research",
    ),
    _glue(
        "stsb",
        "STS-B",
        "Semantic Textual Similarity Benchmark",
        "Pairs of sentences, and how much alike they are, from 0 to 5.",
        "5,749 / 1,500 / 1,379",
        Columns("sentence1", "sentence2", "score"),
        metric="pearson_spearman",
        licence="scores CC BY-SA 4.0; texts as LICENSE.txt says",
    ),
    _glue(
        "qqp",
        "QQP-clean",
        "Quora Question Pairs",
        "Pairs of questions that ask the same or not.",
        "363,846 in train and validation / 40,430",
        Columns("question1", "question2", "is_duplicate", numbered("not_duplicate", "duplicate"), skip_broken=True),
        metric="accuracy_f1",
        licence="Quora's terms, not for commercial use",
    ),
    _glue(
        "mnli",
        "MNLI",
        "Multi-Genre Natural Language Inference",
        "Does a premise entail a hypothesis, contradict it, or neither? Also measured by part: genres that train has "
        "(matched) and others (mismatched). The pairs of one premise stay in one split.",
        "392,702 in train and validation / 19,647",
        Columns(
            "sentence1",
            "sentence2",
            "gold_label",
            named(*_NLI),
            group="promptID",
            on_hub=("premise", "hypothesis"),
        ),
        dev={"dev_matched.tsv": "matched", "dev_mismatched.tsv": "mismatched"},
        licence="OANC's licence, CC BY 3.0, CC BY-SA 3.0, by source",
    ),
    _glue(
        "qnli",
        "QNLIv2",
        "Question Natural Language Inference",
        "Does a sentence hold the answer to a question? Made from SQuAD.",
        "104,743 in train and validation / 5,463",
        Columns("question", "sentence", labels=_ENTAILMENT),
        licence="CC BY-SA 4.0",
    ),
    _glue(
        "rte",
        "RTE",
        "Recognizing Textual Entailment",
        "Does a premise entail a hypothesis? Joined from RTE 1, 2, 3 and 5.",
        "2,241 / 249 / 277",
        Columns("sentence1", "sentence2", labels=_ENTAILMENT),
    ),
    _glue(
        "wnli",
        "WNLI",
        "Winograd Natural Language Inference",
        "Does a sentence entail the same with its pronoun replaced? The dev set contradicts train on purpose: "
        "always answering with the more frequent class is hard to beat.",
        "572 / 63 / 71",
        Columns("sentence1", "sentence2", labels=numbered(_NOT, "entailment")),
        licence="CC BY 4.0",
    ),
    _superglue(
        "boolq",
        "BoolQ",
        "BoolQ",
        "Yes-or-no questions about a passage of Wikipedia.",
        "9,427 in train and validation / 3,270",
        records_of("question", "passage", superglue.FALSE_TRUE),
        licence="CC BY-SA 3.0",
    ),
    _superglue(
        "copa",
        "COPA",
        "Choice of Plausible Alternatives",
        "Which of two sentences is the cause, or the effect, of a premise? The text is the premise and 'because' or "
        "'so'.",
        "360 / 40 / 100",
        superglue.COPA,
        problem=MULTIPLE_CHOICE,
        licence="BSD-2-Clause",
    ),
    _superglue(
        "superglue-rte",
        "RTE",
        "Recognizing Textual Entailment",
        "Does a premise entail a hypothesis? The pairs of GLUE's rte.",
        "2,241 / 249 / 277",
        records_of("premise", "hypothesis", _ENTAILMENT),
    ),
    _superglue(
        "wic",
        "WiC",
        "Word in Context",
        "Does a word mean the same in two sentences? The word and a colon stand before each sentence.",
        "4,886 / 542 / 638",
        superglue.WIC,
        licence="CC BY-NC 4.0",
    ),
    _superglue(
        "wic-question",
        "WiC",
        "Word in Context, as a question",
        "The same as wic in one text: both sentences, and whether the word has the same meaning in them, as P-tuning "
        "v2 asks RoBERTa.",
        "4,886 / 542 / 638",
        superglue.WIC_QUESTION,
        licence="CC BY-NC 4.0",
    ),
    _superglue(
        "wsc",
        "WSC",
        "Winograd Schema Challenge",
        "Does a pronoun stand for a noun phrase? The text has stars around the pronoun; the noun phrase is the second "
        "text.",
        "498 / 56 / 104",
        superglue.WSC,
        licence="CC BY 4.0",
    ),
    _superglue(
        "cb",
        "CB",
        "CommitmentBank",
        "Is the writer of a passage committed to a clause in it? Officially scored by macro F1 and accuracy.",
        "224 / 26 / 56",
        records_of("premise", "hypothesis", named("entailment", "contradiction", "neutral")),
        metric="f1_macro",
    ),
    _superglue(
        "multirc",
        "MultiRC",
        "Multi-Sentence Reading Comprehension",
        "Is an answer to a question about a paragraph right? Several may be: F1 is over all answers, exact match over "
        "questions. Validation has paragraphs of its own.",
        "24,458 / 2,785 / 4,848",
        superglue.MULTIRC,
        metric="f1",
        grouped=True,
    ),
    _superglue(
        "record",
        "ReCoRD",
        "Reading Comprehension with Commonsense Reasoning",
        "Which entity of a news passage does @placeholder stand for in a sentence about it? Answers are among the "
        "marked entities. Officially scored by F1 and exact match.",
        "100,730 (validation taken from them) / 10,000",
        superglue.RECORD,
        problem=QUESTION_ANSWERING,
        metric="token_f1",
    ),
    Task(
        name="conll2003",
        title="CoNLL-2003",
        summary="English news of 1996: persons, locations, organisations and others. Documents are kept together.",
        metric="f1",
        sizes="14,041 / 3,250 / 3,453",
        source="eng.train, eng.testa, eng.testb, https://www.clips.uantwerpen.be/conll2003/ner/ (the text is Reuters')",
        licence="Reuters corpus: research use, by agreement with NIST",
        reader=from_files(
            "conll2003",
            {
                "train": ("eng.train", "train.txt"),
                "validation": ("eng.testa", "valid.txt", "dev.txt"),
                "test": ("eng.testb", "test.txt"),
            },
            read_tagged,
        ),
        hub=from_hub("lukasgarbas/conll-03", ner.HUB_COLUMNS, ner.from_rows),
        labels=ner.tags("LOC", "MISC", "ORG", "PER"),
        problem=TOKEN_CLASSIFICATION,
    ),
    Task(
        name="conll2004",
        title="CoNLL-2004 (entities)",
        summary="News sentences with persons, locations, organisations and others (Roth and Yih), in the split of "
        "Gupta et al.; relations are not read.",
        metric="f1",
        sizes="910 / 243 / 288",
        source="train.txt, dev.txt, test.txt, data/CoNLL04 of "
        "https://github.com/bekou/multihead_joint_entity_relation_extraction",
        licence="no explicit data licence; AP and WSJ sentences",
        reader=from_files(
            "conll2004",
            {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"},
            partial(read_tagged, word_column=1, tag_column=2, lenient=True),  # two entities of train begin with I-
        ),
        labels=ner.tags("Loc", "Org", "Other", "Peop"),  # the copies on the hub have the split 922 / 231 / 288
        problem=TOKEN_CLASSIFICATION,
    ),
    Task(
        name="ontonotes",
        title="OntoNotes 5.0 (entities)",
        summary="English news, broadcasts, conversations, the web and magazines: eighteen types of entities, in the "
        "splits of CoNLL-2012. Parts of documents are kept together.",
        metric="f1",
        sizes="59,924 / 8,528 / 8,262",
        source="the folders train, development and test of the CoNLL-2012 shared task with their gold_conll files, "
        "from LDC2013T19, https://catalog.ldc.upenn.edu/LDC2013T19",
        licence="LDC user agreement",
        reader=ner.read_ontonotes,
        labels=ner.tags(
            *("CARDINAL", "DATE", "EVENT", "FAC", "GPE", "LANGUAGE", "LAW", "LOC", "MONEY"),
            *("NORP", "ORDINAL", "ORG", "PERCENT", "PERSON", "PRODUCT", "QUANTITY", "TIME", "WORK_OF_ART"),
        ),
        problem=TOKEN_CLASSIFICATION,
    ),
    Task(
        name="wnut17",
        title="WNUT-17",
        summary="Social media: six types of entities that are rare or new (emerging entities).",
        metric="f1",
        sizes="3,394 / 1,009 / 1,287",
        source="wnut17train.conll, emerging.dev.conll, emerging.test.annotated, "
        "https://github.com/leondz/emerging_entities_17",
        licence="CC BY 4.0",
        reader=from_files(
            "wnut17",
            {
                "train": "wnut17train.conll",
                "validation": "emerging.dev.conll",
                "test": "emerging.test.annotated",
            },
            partial(read_tagged, tag_column=1),  # columns after it are of no concern
        ),
        hub=from_hub("leondz/wnut_17", ner.HUB_COLUMNS, ner.from_rows, revision=PARQUET),
        labels=ner.tags("corporation", "creative-work", "group", "location", "person", "product"),
        problem=TOKEN_CLASSIFICATION,
    ),
    Task(
        name="webnlg",
        title="WebNLG challenge 2017",
        summary="Text from sets of one to seven triples of DBpedia; the test is also scored by seen and unseen "
        "categories.",
        metric="bleu",
        sizes="6,940 / 872 / 1,862",
        source="webnlg_challenge_2017, https://gitlab.com/shimorina/webnlg-dataset (or its copy "
        "https://github.com/fuzihaofzh/webnlg-dataset)",
        licence="CC BY-NC-SA 4.0",
        reader=webnlg.read,  # the copy on the hub mixes the three test files
        problem=GENERATION,
        markers=webnlg.MARKERS,
    ),
    Task(
        name="e2e",
        title="E2E NLG challenge",
        summary="A description of a restaurant from its attributes; all references of a meaning representation "
        "together.",
        metric="bleu",
        sizes="4,862 / 547 / 630",
        source="e2e-dataset.zip, https://github.com/tuetschek/e2e-dataset",
        licence="CC BY-SA 4.0",
        reader=e2e.read,
        hub=from_hub("tuetschek/e2e_nlg", e2e.HUB_COLUMNS, e2e.from_rows, revision=PARQUET),
        problem=GENERATION,
    ),
    Task(
        name="coqa",
        title="CoQA",
        summary="Answers to questions of a conversation about a passage; the official dev set is the test.",
        metric="token_f1",
        sizes="108,647 (validation taken from them) / 7,983",
        source="coqa-train-v1.0.json, coqa-dev-v1.0.json, https://stanfordnlp.github.io/coqa/",
        licence="mixed by domain: CC BY-SA 4.0, MSR-LA, Apache-2.0, RACE's own, Project Gutenberg",
        reader=from_files(
            "coqa",
            {"train": "coqa-train-v1.0.json", "validation": "coqa-dev-v1.0.json"},
            coqa.read_conversations,
        ),
        hub=from_hub(
            "stanfordnlp/coqa",
            ("source", "story", "questions", "answers"),
            coqa.from_rows,
            lacks="the additional answers of dev; scores against one reference are lower than published ones (the raw "
            "files of stanfordnlp.github.io/coqa have them)",
        ),
        problem=GENERATION,
        splits=(CLEAN, OFFICIAL, coqa.INSTANCES),
        validation=coqa.split_off_500,
        markers=coqa.MARKERS,
    ),
    Task(
        name="squality",
        title="SQuALITY",
        summary="Answers of a paragraph to questions about stories of 5,000 words; four references each.",
        metric="rougeL",
        sizes="250 / 125 / 260",
        source="train.jsonl, dev.jsonl, test.jsonl of data/v1-3/txt, https://github.com/nyu-mll/SQuALITY",
        licence="CC BY 4.0; the stories: Project Gutenberg",
        reader=from_tables(
            "squality", "train.jsonl", "dev.jsonl", squality.FIELDS, squality.from_rows, test="test.jsonl"
        ),
        hub=from_hub("pszemraj/SQuALITY-v1.3", squality.FIELDS, squality.from_rows),
        problem=GENERATION,
    ),
    _squad(
        "squad",
        "v1.1",
        "rajpurkar/squad",
        "Questions about paragraphs of Wikipedia, whose answers are parts of them. The official dev set is the test; "
        "validation has articles of its own.",
        "87,599 (validation taken from them) / 10,570",
    ),
    _squad(
        "squad2",
        "v2.0",
        "rajpurkar/squad_v2",
        "The same with questions that the paragraph does not answer, a third of train and half of the test.",
        "130,319 (validation taken from them) / 11,873",
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _TASKS}


def get_task(name: str) -> Task:
    """Return a task by name.

    Raises:
        DataError: no such task; the message lists them.
    """
    if name not in TASKS:
        raise DataError(_no_task(name))
    return TASKS[name]


def problem_name(data: DataOptions) -> str:
    """Return the name of what is to be learned: the task's problem, or that of data of one's own."""
    return TASKS[data.task].problem if data.task else data.problem


def task_errors(values: Mapping[str, object]) -> list[str]:
    """Return one line for every data option that does not fit the task, or data of one's own; some may be left out."""
    name = values.get("task") or None
    if name is not None and not isinstance(name, str):
        return []  # which is said where values get their types
    if name is not None and name not in TASKS:
        return [f"task: {_no_task(name)}"]
    task, given = TASKS[name] if name else None, given_options(values)
    errors = []
    if task is not None and not task.needs_raw and "path" in given:
        errors.append(f"path has no use with task {quoted(name)}, which reads installed packages")
    problem = values.get("problem", CLASSIFICATION) if task is None else task.problem
    if "join_documents" in given and problem != TOKEN_CLASSIFICATION:
        errors.append(f"join_documents is for {TOKEN_CLASSIFICATION}, got data for {problem}")
    for owner in TASKS.values():
        own = [option for option in owner.options if option in given and owner is not task]
        errors.extend(f"{option} is for task {owner.name!r}, got task {quoted(name)}" for option in own)
    return errors + _split_errors(values.get("split", CLEAN), task)


def _split_errors(split: object, task: Task | None) -> list[str]:
    allowed = (CLEAN,) if task is None else task.splits
    if split in allowed:
        return []
    owners = [repr(owner.name) for owner in TASKS.values() if split in owner.splits]
    if not owners:
        return [f"split must be one of {', '.join(allowed)}, got {quoted(split)}"]
    return [
        f"split={quoted(split)} exists only for task{'s' if len(owners) > 1 else ''} {', '.join(owners)}, "
        f"got task {quoted(task and task.name)}"
    ]


def raw_place(task: Task, path: str | None = None) -> Path | None:
    """Return where a task's raw data are looked for: ``path``, or $FORETOKEN_DATA/<place>; None if that is not set."""
    folder = os.environ.get(DATA_VARIABLE)
    return local_path(path or f"{folder}/{task.place}") if path or folder else None


def find_raw(task: Task, path: str | None = None) -> Path:
    """Return where a task's raw data are.

    Raises:
        MissingDataError: they are not there; the message says where it looked and where to get the data.
    """
    place = raw_place(task, path)
    if place is not None and is_there(place):
        return place
    hub = f", or set path to 'hub' to load {task.hub_name} from the hub" if task.hub_name else ""
    raise MissingDataError(
        f"task {task.name!r}: the raw data were not found at {place or f'${DATA_VARIABLE}/{task.place} (not set)'}; "
        f"get {task.source}, and name its folder with data.path or put it at ${DATA_VARIABLE}/{task.place}{hub}"
    )


def _no_task(name: str) -> str:
    if name in LEFT:
        return f"{quoted(name)} left foretoken: {LEFT[name]}"
    return f"no task {quoted(name)}{did_you_mean(name, TASKS)}; the tasks are {', '.join(TASKS)}"
