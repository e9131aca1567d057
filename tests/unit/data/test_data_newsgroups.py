"""20 Newsgroups: small archives made here, and the real one where it is at hand."""

import io
import logging
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from foretoken.data.options import DataOptions
from foretoken.data.tasks.newsgroups import strip
from foretoken.data.tasks.table import TASKS
from foretoken.errors import DataError

from support.data import load

TASK = TASKS["20newsgroups"]
POST = """From: someone@somewhere
Subject: orbits

In article <1@x> someone else writes:
> is it round?
| or flat
It is round.

Indeed.

--
Some One
"""
RAW = Path(__file__).resolve().parents[4] / "shared" / "data" / "20newsgroups"


def post(group, number, body):
    return f"From: a@b\nSubject: {group}\n\n{body} in post {number}.\n"


def posts():
    for half, count in (("train", 6), ("test", 3)):
        for group in ("sci.med", "sci.space"):
            for i in range(count):
                yield (
                    f"20news-bydate-{half}/{group}/{i}",
                    post(group, i, f"Caf\u00e9 {half}").encode("latin-1"),
                )
    yield "20news-bydate-train/sci.med/99", b"From: a@b\n\n> only a quote\n"


def archive(path, mode="w:gz", prefix=""):
    with tarfile.open(path, mode) as tar:
        for name, content in posts():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("remove", "text"),
    [
        ([], POST),
        (["headers"], POST.partition("\n\n")[2]),
        (["headers", "footers"], POST.partition("\n\n")[2].partition("\n--")[0]),
        (["quotes", "headers"], "It is round.\n\nIndeed.\n\n--\nSome One\n"),
        (["footers", "quotes", "headers"], "It is round.\n\nIndeed.\n"),
    ],
)
def test_strip(remove, text):
    assert strip(POST, remove) == text


@pytest.mark.parametrize(("name", "mode"), [("20news-bydate.tar.gz", "w:gz"), ("20news-bydate.tar.xz", "w:xz")])
@pytest.mark.parametrize("prefix", ["", "20news-bydate/"])
def test_an_archive_in_a_folder(tmp_path, name, mode, prefix, caplog):
    archive(tmp_path / name, mode, prefix)
    with caplog.at_level(logging.INFO, logger="foretoken.data.tasks.newsgroups"):
        data = load(DataOptions(task="20newsgroups", path=str(tmp_path)))
    assert {split: len(data[split]) for split in data} == {"train": 10, "validation": 2, "test": 6}
    assert data["train"].features["label"].names == ["sci.med", "sci.space"]
    row = data["test"][0]
    assert (row["id"], row["label"]) == ("test/sci.med/0", 0)  # the halves made here share their numbers
    assert row["text"] == "Caf\u00e9 test in post 0.\n"
    assert "dropped 1 empty of 13 train posts" in caplog.text
    assert list(tmp_path.iterdir()) == [tmp_path / name]  # nothing is extracted


def test_the_folders_give_what_the_archive_gives(tmp_path):
    for name, content in posts():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    options = DataOptions(task="20newsgroups", remove=["headers"])
    from_archive = TASK.read_raw(archive(tmp_path / "20news.tar.gz"), options).splits
    from_folders = TASK.read_raw(tmp_path, options).splits
    for split in ("train", "test"):
        assert Counter((d.id, d.text, d.label) for d in from_archive[split]) == Counter(
            (d.id, d.text, d.label) for d in from_folders[split]
        )


def test_damaged_and_wrong_archives(tmp_path):
    whole = archive(tmp_path / "a.tar.xz", "w:xz").read_bytes()
    for number, content in enumerate((whole[: len(whole) // 2], b"no archive at all", b"")):
        path = tmp_path / f"damaged{number}.tar.xz"
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"damaged{number}.tar.xz: the archive is damaged or no tar or zip archive"):
            load(DataOptions(task="20newsgroups", path=str(path)))
    gz = archive(tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(gz[:-300])
    with pytest.raises(DataError, match="the archive is damaged"):
        load(DataOptions(task="20newsgroups", path=str(tmp_path / "b.tar.gz")))
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("something/else"))
    with pytest.raises(DataError, match="no posts at 20news-bydate-train/<group>/<number>"):
        load(DataOptions(task="20newsgroups", path=str(tmp_path / "other.tar")))
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match=r"bare: no posts at .*no archive 20news-bydate\.tar\.gz"):
        load(DataOptions(task="20newsgroups", path=str(tmp_path / "bare")))


def test_the_real_archive():
    if not (RAW / "20news-bydate.tar.xz").is_file():
        pytest.skip(f"the raw 20 Newsgroups archive is not at {RAW}")
    from sklearn.datasets import _twenty_newsgroups as rules

    plain = TASK.read_raw(RAW, DataOptions(task="20newsgroups", remove=[])).splits
    assert {split: len(documents) for split, documents in plain.items()} == {"train": 11314, "test": 7532}
    assert tuple(sorted({document.label for document in plain["test"]})) == TASK.labels
    assert Counter(document.label for document in plain["train"])["alt.atheism"] == 480
    for document in plain["test"][::75]:
        text = rules.strip_newsgroup_header(document.text)
        text = rules.strip_newsgroup_quoting(rules.strip_newsgroup_footer(text))
        assert strip(document.text, ["quotes", "footers", "headers"]) == text
