"""Raw files of tasks that are pipes, deep, long, packed to excess or damaged: refused in one line, like one's own."""

import io
import os
import signal
import tarfile
import zipfile

import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.readers import archives
from foretoken.data.readers.files import as_xml
from foretoken.errors import DataError

SECONDS = 10  # to read a pipe that nobody writes to would take for ever
ARTICLES = "articles-training-byarticle-20181122.xml"
TRUTH = "ground-truth-training-byarticle-20181122.xml"


@pytest.fixture(autouse=True)
def soon():
    def too_late(*_):
        raise AssertionError("a file was waited for")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refused(task, path, *parts, **options):
    with pytest.raises(DataError) as caught:
        load_data(DataOptions(task=task, path=str(path), **options))
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("task", "name", "beside"),
    [
        ("coqa", "coqa-train-v1.0.json", ["coqa-dev-v1.0.json"]),
        ("hyperpartisan", ARTICLES, [TRUTH]),
        ("20newsgroups", "20news-bydate.tar.gz", []),
        ("e2e", "e2e-dataset.zip", []),
        ("e2e", "trainset.csv", ["devset.csv", "testset_w_refs.csv"]),
        ("webnlg", "train/a.xml", []),
        ("squality", "train.jsonl", ["dev.jsonl", "test.jsonl"]),
        ("conll2003", "eng.train", ["eng.testa", "eng.testb"]),
        ("cola", "train.tsv", ["dev.tsv"]),
        ("mrpc", "msr_paraphrase_train.txt", ["dev_ids.tsv"]),
        ("arxiv", "train-0.parquet", []),
    ],
)
def test_a_pipe_is_not_waited_for(tmp_path, task, name, beside):
    for file in (name, *beside):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    for file in beside:
        (tmp_path / file).write_text("a\tb\n")
    os.mkfifo(tmp_path / name)
    refused(task, tmp_path, f"{name}: is a pipe, expected a file")


def tar(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_archives_that_unpack_to_more_than_any_data_set(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_MOST_BYTES", 10_000)
    post = {"20news-bydate-train/sci.med/1": b"a" * 10_001}
    refused("20newsgroups", tar(tmp_path / "news.tar.gz", post), "unpacks to more than 10,000 bytes")
    refused("webnlg", tar(tmp_path / "nlg.tar.gz", {"train/a.xml": b"a" * 10_001}), "unpacks to more than 10,000 bytes")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trainset.csv", "a" * 10_001)
    refused("e2e", tmp_path / "a.zip", "unpacks to more than 10,000 bytes")


def test_packings_and_passwords_that_zipfile_does_not_know(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("trainset.csv", "devset.csv", "testset_w_refs.csv"):
            archive.writestr(name, "mr,ref\na,b\n")
    whole = path.read_bytes()
    for place, value in ((8, 99), (6, 1)):  # the packing and the flags of a file's header, and again in the directory
        changed = bytearray(whole)
        for magic, offset in ((b"PK\x03\x04", place), (b"PK\x01\x02", place + 2)):
            changed[whole.index(magic) + offset] = value
        path.write_bytes(changed)
        refused("e2e", path, "a.zip: the archive is damaged or no tar or zip archive")


@pytest.mark.parametrize("name", ["nothing-of-that-name", "shift_jis"])
def test_xml_in_an_encoding_that_expat_cannot_read(name):
    with pytest.raises(DataError, match=r"a\.xml:1:\d+: malformed XML: "):
        as_xml("a.xml", f'<?xml version="1.0" encoding="{name}"?><a/>'.encode())
