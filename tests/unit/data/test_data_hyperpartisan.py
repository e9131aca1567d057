"""Hyperpartisan news: small XML files made here, and the real ones where they are at hand."""

import json
import logging
from collections import Counter
from pathlib import Path

import pytest

from foretoken.data.options import DataOptions
from foretoken.errors import DataError

from support.data import load

RAW = Path(__file__).resolve().parents[4] / "shared" / "data" / "hyperpartisan"
ARTICLES = "articles-training-byarticle-20181122.xml"
TRUTH = "ground-truth-training-byarticle-20181122.xml"
OPTIONS = {"task": "hyperpartisan"}


def body(i):
    return (
        f'<p>Para{i} <a href="http://x.y">link</a>, Q&amp;A.</p><p>Second&#160;one &amp;#160; {i}\n'
        "see https://t.co/z </p>"
    )


def folder(path, count=30, articles=None, truth=None, splits=None):
    articles = articles or [f'<article id="{i:07}" title="Title &amp; {i}">\n{body(i)}</article>' for i in range(count)]
    truth = truth or [
        f'<article id="{i:07}" hyperpartisan="{"true" if i % 3 == 0 else "false"}"/>' for i in range(count)
    ]
    for name, items in ((ARTICLES, articles), (TRUTH, truth)):
        content = "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', "<articles>", *items, "</articles>"])
        (path / name).write_text(content, encoding="utf-8")
    if splits is not None:
        (path / "hp-splits.json").write_text(splits if isinstance(splits, str) else json.dumps(splits))
    return str(path)


def test_title_text_label_and_id(tmp_path):
    data = load(DataOptions(path=folder(tmp_path), **OPTIONS))
    assert data["train"].features["label"].names == ["mainstream", "hyperpartisan"]
    assert sum(map(len, data.values())) == 30
    for split in data.values():
        for row in split:
            i = int(row["id"])
            assert row["text"] == f"Title & {i}\nPara{i} link, Q&A. Second one {i} see"
            assert row["label"] == int(i % 3 == 0)


def test_clean_splits_keep_near_duplicates_together(tmp_path):
    shared = " ".join(f"word{i}" for i in range(60))
    texts = [shared if i in (3, 17, 20) else f"text {i}" for i in range(30)]
    articles = [f'<article id="{i}" title="T{i}"><p>{text} end{i}</p></article>' for i, text in enumerate(texts)]
    truth = [f'<article id="{i}" hyperpartisan="{"true" if i % 3 == 0 else "false"}"/>' for i in range(30)]
    path = folder(tmp_path, articles=articles, truth=truth)
    for seed in range(12):
        data = load(DataOptions(path=path, split_seed=seed, **OPTIONS))
        homes = {split for split in data for i in data[split]["id"] if i in ("3", "17", "20")}
        assert len(homes) == 1, seed


def test_the_published_split_is_kept_and_warned_about(tmp_path, caplog):
    splits = {"train": [5, 0, 1, 2], "dev": [3, 4], "test": [6, 0, 4, 1]}
    path = folder(tmp_path, splits=splits)
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        data = load(DataOptions(path=path, split="longformer", **OPTIONS))
    assert data["train"]["id"][:] == [f"train/{i:07}" for i in splits["train"]]
    assert data["validation"]["id"][:] == [f"validation/{i:07}" for i in splits["dev"]]
    assert data["test"]["id"][:] == [f"test/{i:07}" for i in splits["test"]]
    [record] = caplog.records
    assert "3 of its 4 test articles are also in train or dev" in record.getMessage()


@pytest.mark.parametrize(
    ("files", "split", "message"),
    [
        (
            {"articles": ["<article id='1' title='x'><p>a</b></article>"]},
            "clean",
            f"{ARTICLES}:3:33: malformed XML",
        ),
        (
            {"articles": ["<article title='x'>a</article>"]},
            "clean",
            f"{ARTICLES}:article 1: the article has no attribute 'id'",
        ),
        (
            {"articles": ["<article id='1'>a</article>"] * 2},
            "clean",
            f"{ARTICLES}:article 2: article id '1' was already used at",
        ),
        ({"articles": ["<article id='x'>a</article>"]}, "clean", f"{ARTICLES}:article 1: article 'x' has no label"),
        ({"articles": ["<other/>"]}, "clean", f"{ARTICLES}: no articles"),
        (
            {"truth": ["<article id='0'/>"]},
            "clean",
            f"{TRUTH}:article 1: the article has no attribute 'hyperpartisan'",
        ),
        (
            {"truth": ["<article hyperpartisan='maybe' id='0'/>"]},
            "clean",
            f"{TRUTH}:article 1: hyperpartisan='maybe', expected",
        ),
        ({}, "longformer", "hp-splits.json: no such file; split 'longformer' needs hp-splits.json"),
        ({"splits": '{"train": [1,\n2,]}'}, "longformer", "hp-splits.json:2:3: malformed JSON"),
        ({"splits": {"train": [1]}}, "longformer", "hp-splits.json: expected an object"),
        (
            {"splits": {"train": [1], "dev": [2], "test": [999]}},
            "longformer",
            "split 'test' names article 999",
        ),
        (
            {"splits": {"train": [1], "dev": [2], "test": ["3"]}},
            "longformer",
            "hp-splits.json: expected an object",
        ),
    ],
)
def test_errors(tmp_path, files, split, message):
    with pytest.raises(DataError) as caught:
        load(DataOptions(path=folder(tmp_path, **files), split=split, **OPTIONS))
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def real():
    if not (RAW / ARTICLES).is_file():
        pytest.skip(f"the raw Hyperpartisan files are not at {RAW}")
    return str(RAW)


def test_the_real_files_split_cleanly(real):
    data = load(DataOptions(path=real, **OPTIONS))
    assert sum(map(len, data.values())) == 645
    assert sum(Counter(split["label"])[1] for split in data.values()) == 238
    assert abs(len(data["test"]) - 65) <= 2
    assert abs(len(data["validation"]) - 65) <= 2
    ids = {split: set(data[split]["id"]) for split in data}
    assert len(set.union(*ids.values())) == 645
    homes = {i: split for split, own in ids.items() for i in own}
    for one, other in ((121, 65), (384, 383), (580, 386), (103, 68), (79, 78)):  # copies and near copies
        assert homes[f"{one:07}"] == homes[f"{other:07}"]
    again = load(DataOptions(path=real, **OPTIONS))
    assert all(again[split].to_dict() == data[split].to_dict() for split in data)


def test_the_real_published_split(real, caplog):
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        data = load(DataOptions(path=real, split="longformer", **OPTIONS))
    assert [len(data[split]) for split in ("train", "validation", "test")] == [516, 64, 65]
    assert Counter(data["test"]["label"]) == {0: 38, 1: 27}
    assert "58 of its 65 test articles" in caplog.text
