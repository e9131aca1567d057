"""WebNLG 2017: a small folder and archive made here, and the real archive where it is at hand."""

import io
import os
import tarfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import TASKS
from foretoken.errors import DataError

RAW = Path(os.environ.get("FORETOKEN_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data") / "webnlg"
NONE = DataOptions(task="pydocs")
TASK = TASKS["webnlg"]
ENTRY = """<entry category="{category}" eid="Id{number}" size="2">
<originaltripleset><otriple>no | not | this</otriple></originaltripleset>
<modifiedtripleset>
<mtriple>Adolfo_Su\u00e1rez | cityServed | "Madrid &amp; more"</mtriple>
<mtriple>{number} | \u00bd | C</mtriple>
</modifiedtripleset>
<lex comment="good" lid="Id1">Text one of {number}.</lex>
<lex comment="toFix" lid="Id2"> Text two. </lex>
</entry>"""
FILES = {
    "train/2triples/2triples_Food_train_challenge.xml": ["Food", "Food", "Food"],
    "train/1triples/1triple_City_train_challenge.xml": ["City"],
    "dev/2triples/2triples_Food_dev_challenge.xml": ["Food"],
    "test/testdata_with_lex.xml": ["Food", "Artist"],
    "test/testdata_unseen_with_lex.xml": ["Artist"],
    "test/testdata_no_lex.xml": ["Artist"],
}


def document(entries):
    return "<?xml version='1.0' encoding='UTF-8'?>\n<benchmark>\n<entries>\n{}\n</entries></benchmark>\n".format(
        "\n".join(entries)
    )


def contents():
    for number, (name, categories) in enumerate(FILES.items()):
        entries = [
            ENTRY.format(category=category, number=10 * number + place) for place, category in enumerate(categories)
        ]
        yield name, document(entries)


def folder(root):
    for name, text in contents():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def archive(path):
    with tarfile.open(path, "w:xz") as tar:
        for name, text in contents():
            member = tarfile.TarInfo(f"webnlg_challenge_2017/{name}")
            member.size = len(text.encode("utf-8"))
            tar.addfile(member, io.BytesIO(text.encode("utf-8")))
    return path


def test_a_folder_an_archive_and_a_folder_with_the_archive_are_the_same(tmp_path):
    extracted = TASK.read_raw(folder(tmp_path / "a"), NONE)
    file = archive(tmp_path / "webnlg_challenge_2017.tar.xz")
    packed, nearby = (
        TASK.read_raw(file, NONE),
        TASK.read_raw(folder(tmp_path / "b" / "webnlg_challenge_2017").parent, NONE),
    )
    for split, examples in extracted.splits.items():
        expected = [(one.id, one.source, one.references, one.part) for one in examples]
        for corpus in (packed, nearby):
            assert [(one.id, one.source, one.references, one.part) for one in corpus.splits[split]] == expected
    assert TASK.read_raw(tmp_path / "a", NONE).splits.keys() == {"train", "validation", "test"}
    assert packed.splits["train"][0].where.startswith(f"{file}:webnlg_challenge_2017/train/1triples/")


def test_an_entry(tmp_path):
    corpus = TASK.read_raw(folder(tmp_path), NONE)
    assert {split: len(examples) for split, examples in corpus.splits.items()} == {
        "train": 4,
        "validation": 1,
        "test": 2,
    }
    seen, unseen = corpus.splits["test"]
    assert seen.source == (
        '<bos_webnlg> <subject> Adolfo_Su\u00e1rez <property> cityServed <object> "Madrid & more" '
        "<subject> 30 <property> \u00bd <object> C"
    )
    assert seen.references == ("Text one of 30.", "Text two.")
    assert (seen.part, unseen.part) == ("seen", "unseen")
    assert seen.where == f"{tmp_path / 'test/testdata_with_lex.xml'}:entry 1"
    assert corpus.splits["train"][0].part is None
    assert corpus.problem == "generation"


@pytest.mark.parametrize(
    ("entry", "line", "message"),
    [
        ("<entry category='Food' eid='1'><lex>a</entry>", ":4:", "malformed XML: mismatched tag"),
        (
            "<entry category='Food' eid='1'>\n<mtriple>a | b</mtriple></entry>",
            ":entry 1",
            "the triple 'a | b' has 2 parts",
        ),
        ("<entry category='Food' eid='1'><lex>a</lex></entry>", ":entry 1", "no <mtriple>"),
        ("<entry category='Food' eid='1'><mtriple>a | b | c</mtriple></entry>", ":entry 1", "no <lex>"),
        (
            "<entry eid='1'><mtriple>a | b | c</mtriple><lex>a</lex></entry>",
            ":entry 1",
            "no eid or category; the entry has eid",
        ),
        ("<entry category='x' eid='1'><mtriple>a | b | c</mtriple><lex> </lex></entry>", ":entry 1", "an empty <lex>"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path, entry, line, message):
    path = folder(tmp_path) / "dev/2triples/2triples_Food_dev_challenge.xml"
    path.write_text(document([entry]), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        TASK.read_raw(tmp_path, NONE)
    assert str(caught.value).startswith(f"{path}{line}")
    assert message in str(caught.value)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(DataError, match=r"no entries for train; expected webnlg_challenge_2017\.tar\*"):
        TASK.read_raw(tmp_path, NONE)
    (folder(tmp_path / "a") / "test/testdata_with_lex.xml").unlink()
    with pytest.raises(DataError, match="no entries for test; expected"):
        TASK.read_raw(tmp_path / "a", NONE)
    damaged = archive(tmp_path / "x.tar.xz")
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.raises(DataError, match="the archive is damaged"):
        TASK.read_raw(damaged, NONE)


@pytest.mark.skipif(not RAW.is_dir(), reason="the raw data are not at hand")
def test_the_real_archive():
    splits = TASK.read_raw(RAW, NONE).splits
    sizes = {split: (len(examples), sum(len(one.references) for one in examples)) for split, examples in splits.items()}
    assert sizes == {"train": (6940, 18102), "validation": (872, 2268), "test": (1862, 4928)}
    parts = Counter(one.part for one in splits["test"])
    assert parts == {"seen": 971, "unseen": 891}
    assert sum(len(one.references) for one in splits["test"] if one.part == "unseen") == 2433
    # the file of the unseen categories, read by another parser
    with tarfile.open(RAW / "webnlg_challenge_2017.tar.xz") as tar:
        unseen = ElementTree.fromstring(
            tar.extractfile("webnlg_challenge_2017/test/testdata_unseen_with_lex.xml").read()
        )
    texts = {tuple(lex.text.strip() for lex in entry.iter("lex")) for entry in unseen.iter("entry")}
    assert {one.references for one in splits["test"] if one.part == "unseen"} == texts
