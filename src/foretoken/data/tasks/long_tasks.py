"""The built-in tasks of labelling whole documents that need no module of their own."""

from __future__ import annotations

from foretoken.data.tasks import hyperpartisan, newsgroups
from foretoken.data.tasks.base import CLEAN, Task, hub_documents
from foretoken.data.tasks.pydocs import task as pydocs

TASKS: tuple[Task, ...] = (
    Task(
        name="pydocs",
        title="Documentation of scientific Python packages",
        summary="Long documents made from installed docstrings, labelled by topic; names of packages, "
        "modules and topics are masked. Needs no download; the documents follow the installed versions.",
        metric="f1_macro",
        labels=pydocs.LABELS,
        source="the packages that foretoken depends on",
        licence="the documentation's own: BSD-3-Clause and Apache-2.0",
        hub=None,
        reader=pydocs.read,
        sizes="by the installed versions",
        needs_raw=False,
    ),
    Task(
        name="20newsgroups",
        title="20 Newsgroups",
        summary="Usenet posts of 1993 in twenty groups; the official split by date, without headers, "
        "signatures and quotes.",
        metric="accuracy",
        labels=newsgroups.LABELS,
        source="20news-bydate.tar.gz, http://qwone.com/~jason/20Newsgroups/",
        licence="no formal licence; distributed for research",
        hub=hub_documents(
            "SetFit/20_newsgroups",
            None,
            "text",
            "label_text",
            newsgroups.check_hub,
            newsgroups.from_hub_row,
        ),
        reader=newsgroups.read,
        sizes="9,912 / 1,102 / 7,317",
    ),
    Task(
        name="hyperpartisan",
        title="Hyperpartisan News Detection",
        summary="645 news articles judged hyperpartisan or not (SemEval-2019 task 4, by article).",
        metric="f1",
        labels=hyperpartisan.LABELS,
        source="articles- and ground-truth-training-byarticle-20181122.xml, https://zenodo.org/record/1489920",
        licence="CC BY 4.0",
        hub=hub_documents(
            "hyperpartisan_news_detection",
            "byarticle",
            "text",
            "hyperpartisan",
            hyperpartisan.check_hub,
            hyperpartisan.from_hub_row,
        ),
        reader=hyperpartisan.read,
        sizes="514 / 65 / 66",
        splits=(CLEAN, "longformer"),
    ),
)
