"""Raw files of tasks with a reader of their own: small ones made here, and the real ones where they are at hand."""

import io
import json
import logging
import os
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.tasks import base
from foretoken.data.tasks.table import TASKS, task_errors
from foretoken.data.tasks.topics import strip
from foretoken.errors import DataError, MissingDataError

from support.data import load

RAW = Path(os.environ.get("FORETOKEN_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
ARTICLES, TRUTH = (f"{name}-training-byarticle-20181122.xml" for name in ("articles", "ground-truth"))
SUBJECTS = TASKS["arxiv"].labels


def here(task):
    return pytest.mark.skipif(not (RAW / TASKS[task].place).is_dir(), reason="the raw data are not at hand")


def read(task, path, **options):
    return TASKS[task].read_raw(path, DataOptions(task=task, **options)).splits


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def packed(path, files, prefix="top/"):
    """Write an archive; its ending says of which kind."""
    contents = {prefix + name: text if isinstance(text, bytes) else text.encode() for name, text in files.items()}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def xml(root, items):
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}>\n' + "\n".join(items) + f"</{root}>\n"


def turns(*texts):
    return [{"input_text": text} for text in texts]


def talk(number, **changes):
    texts = {"questions": turns("Q1?", "Q2?", "Q3?", "Q4?"), "answers": turns("a1", "a2", "a3", "a4")}
    return {"source": "race", "id": f"c{number}", "story": f" Story {number}. "} | texts | changes


def talks(*records):
    return json.dumps({"version": "1.0", "data": records})


def story(name, **changes):
    questions = [
        {"question_text": f"What {n}? ", "responses": [{"response_text": text} for text in ("One.", " Two. ")]}
        for n in (1, 2)
    ]
    return {"metadata": {"passage_id": name}, "document": f"Story {name}\n", "questions": questions} | changes


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def item(number, **changes):
    candidates = {"candidates": ["france", "na\u00efve \U0001f600", "italy"], "answer": "italy"}
    asked = {"id": f"WH_{number}", "query": f"person {number}", "supports": ["One .", "Two ."]}
    return asked | candidates | changes


def entry(number, category="Food", texts=("Text one.", " Text two. ")):
    lex = "".join(f"<lex>{text}</lex>" for text in texts)
    triples = f"<mtriple>A_b | in | &quot;Madrid &amp; more&quot;</mtriple><mtriple>{number} | \u00bd | C</mtriple>"
    other = "<originaltripleset><otriple>no | not | this</otriple></originaltripleset>"
    return f'<entry category="{category}" eid="Id{number}">{other}{triples}{lex}</entry>'


def article(number):
    link = f'<p>Para{number} <a href="http://x.y">link</a>, Q&amp;A.</p>'
    body = f"\n{link}<p>Second&#160;one &amp;#160; {number}\nsee https://t.co/z </p>"
    return f'<article id="{number:07}" title="Title &amp; {number}">{body}</article>'


def truth(number):
    return f'<article id="{number:07}" hyperpartisan="{"true" if number % 3 == 0 else "false"}"/>'


def paper(number, split="x"):
    subject = SUBJECTS[number % 11]
    return {"text": f"arXiv:{number} [{subject}] {split}\n\nAs in cs.CV and math.STAT", "label": subject}


POSTS = {
    f"20news-bydate-{half}/{group}/{number}": f"From: a@b\n\nCaf\u00e9 {half} {group} {number}.\n".encode("latin-1")
    for half, count in (("train", 6), ("test", 3))
    for group in ("sci.med", "sci.space")
    for number in range(count)
} | {"20news-bydate-train/sci.med/99": b"From: a@b\n\n> only a quote\n"}
E2E = (
    'mr,ref\n"name[Caf\u00e9], area[x, y]","In ""town""."\nname[B],B is a pub.\n'
    '"name[Caf\u00e9], area[x, y]","A caf\u00e9,\nin town."\n'
)
OTHER_ANSWERS = {"0": turns("b1", "b2", "b3", "b4")}
FILES = {  # a folder of each task that can be read
    "20newsgroups": POSTS,
    "webnlg": {
        "train/1/a_train.xml": xml("benchmark", [entry(1), entry(2)]),
        "dev/1/a_dev.xml": xml("benchmark", [entry(3)]),
        "test/testdata_with_lex.xml": xml("benchmark", [entry(4), entry(5, "Artist")]),
        "test/testdata_no_lex.xml": "of no concern",
    },
    "e2e": dict.fromkeys(("trainset.csv", "devset.csv", "testset_w_refs.csv"), E2E),
    "coqa": {
        "coqa-train-v1.0.json": talks(*map(talk, range(20))),
        "coqa-dev-v1.0.json": talks(*(talk(n, additional_answers=OTHER_ANSWERS) for n in (30, 31))),
    },
    "squality": {f"{split}.jsonl": lines(story(f"{split}1"), story(f"{split}2")) for split in ("train", "dev", "test")},
    "wikihop": {"train.json": json.dumps([*map(item, range(30))]), "dev.json": json.dumps([*map(item, range(40, 45))])},
    "hyperpartisan": {
        ARTICLES: xml("articles", map(article, range(30))),
        TRUTH: xml("articles", map(truth, range(30))),
        "hp-splits.json": '{"train": [5, 0, 1, 2], "dev": [3, 4], "test": [6, 0, 4, 1]}',
    },
    "arxiv": {f"{name}_data.txt": lines(*(paper(n, name) for n in range(11))) for name in ("train", "val", "test")},
}


@pytest.mark.parametrize(
    ("task", "name"),
    [("20newsgroups", "20news-bydate.tar.xz"), ("webnlg", "webnlg_challenge_2017.tar.gz"), ("e2e", "e2e-dataset.zip")],
)
def test_an_archive_a_folder_with_it_and_its_content_are_the_same(tmp_path, task, name):
    archive = packed(tmp_path / name, FILES[task])
    expected = read(task, write(tmp_path / "a", FILES[task]))
    for path in (archive, tmp_path / "a"):
        for split, examples in read(task, path).items():
            assert [repr(one).partition("where=")[0] for one in examples] == [
                repr(one).partition("where=")[0] for one in expected[split]
            ]
            assert all(one.content == other.content for one, other in zip(examples, expected[split], strict=True))
    assert read(task, archive)["train"][0].where.startswith(f"{archive}:top/")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["a", name])  # nothing is extracted


def test_posts_are_stripped_and_empty_ones_dropped(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="foretoken.data"):
        data = load(DataOptions(task="20newsgroups", path=str(write(tmp_path, POSTS))))
    assert {split: len(data[split]) for split in data} == {"train": 10, "validation": 2, "test": 6}
    assert (data["test"][0]["id"], data["test"][0]["text"]) == ("test/sci.med/0", "Caf\u00e9 test sci.med 0.\n")
    assert "left out 1 of 13 train posts, whose text is empty" in caplog.text


POST = (
    "From: me\nSubject: orbits\n\nIn article <1@x> you write:\n> is it round?\n| or flat\n"
    "It is round.\n\nIndeed.\n\n--\nMe\n"
)


@pytest.mark.parametrize(
    ("remove", "text"),
    [
        (["headers", "footers"], POST.partition("\n\n")[2].partition("\n--")[0]),
        (["footers", "quotes", "headers"], "It is round.\n\nIndeed.\n"),
    ],
)
def test_strip(remove, text):
    assert strip(POST, remove) == text


def test_triples(tmp_path):
    splits = read("webnlg", write(tmp_path, FILES["webnlg"]))
    assert {split: len(examples) for split, examples in splits.items()} == {"train": 2, "validation": 1, "test": 2}
    seen, unseen = splits["test"]
    assert seen.source == (
        '<bos_webnlg> <subject> A_b <property> in <object> "Madrid & more" <subject> 4 <property> \u00bd <object> C'
    )
    assert (seen.id, seen.references) == ("testdata_with_lex/Id4", ("Text one.", "Text two."))
    assert (seen.part, unseen.part, splits["train"][0].part) == ("seen", "unseen", None)
    # Chen et al. (2022), Table 4, whose six embeddings are trained
    tokens = "<bos_webnlg> <subject> <property> <object> <target_webnlg> <eos_webnlg>"
    assert TASKS["webnlg"].markers.tokens == tuple(tokens.split())


def test_references_of_a_meaning_are_taken_together(tmp_path):
    first, second = read("e2e", write(tmp_path, FILES["e2e"]))["test"]
    assert (first.source, first.references) == ("name[Caf\u00e9], area[x, y]", ('In "town".', "A caf\u00e9,\nin town."))
    assert (second.references, second.where) == (("B is a pub.",), f"{tmp_path / 'testset_w_refs.csv'}:3")


def test_conversations(tmp_path, caplog):
    silent = talk(40, answers=turns("a1", " ", "a3", "a4"))
    files = {"coqa-dev-v1.0.json": talks(talk(30, additional_answers=OTHER_ANSWERS), silent)}
    write(tmp_path, FILES["coqa"] | files)
    with caplog.at_level(logging.INFO, logger="foretoken.data"):
        splits = read("coqa", tmp_path, split="official")
    first, second, _, fourth, *others = splits["test"]
    assert first.source == "<bos_qa> <document> Story 30. <question> Q1?"
    assert second.source == "<bos_qa> <document> Story 30. <question> Q1? <answer> a1 <question> Q2?"
    assert fourth.source.endswith("Story 30. <question> Q2? <answer> a2 <question> Q3? <answer> a3 <question> Q4?")
    assert (fourth.id, fourth.group, fourth.part, fourth.references) == ("c30/4", "c30", "race", ("a4", "b4"))
    assert [one.id for one in others] == ["c40/1", "c40/3", "c40/4"]
    assert "record 2: turn 2 has an empty question or answer" in caplog.text
    data = load_data(DataOptions(task="coqa", path=str(tmp_path))).splits
    assert [len(data[split]) for split in ("train", "validation", "test")] == [72, 8, 7]
    assert not set(data["train"]["group"]) & set(data["validation"]["group"])


def test_questions_about_stories(tmp_path):
    splits = read("squality", write(tmp_path, FILES["squality"]))
    assert [one.id for one in splits["test"]] == ["test1/1", "test1/2", "test2/1", "test2/2"]
    second = splits["validation"][1]
    assert (second.source, second.references, second.group) == ("What 2?\n\nStory dev1", ("One.", "Two."), "dev1")


def test_candidates_and_the_masked_files(tmp_path):
    write(tmp_path, FILES["wikihop"])
    data = load_data(DataOptions(task="wikihop", path=str(tmp_path)))
    assert data.problem == "candidates"
    assert [len(data.splits[split]) for split in ("train", "validation", "test")] == [27, 3, 5]
    row = data.splits["test"][0]
    assert (row["id"], row["candidates"][row["label"]], row["supports"]) == ("WH_40", "italy", ["One .", "Two ."])
    with pytest.raises(MissingDataError, match=r"'wikihop-masked' needs a file train\.masked\.json here"):
        read("wikihop-masked", tmp_path)


def test_medhop_left_and_its_files_are_data_of_ones_own(tmp_path):
    assert task_errors({"task": "medhop"}) == [
        "task: 'medhop' left foretoken: name its files as your own data, with data.problem candidates"
    ]
    write(tmp_path, FILES["wikihop"])
    files = {"train": str(tmp_path / "train.json"), "test": str(tmp_path / "dev.json")}
    data = load_data(DataOptions(**files, problem="candidates"))
    assert [len(data.splits[split]) for split in ("train", "validation", "test")] == [27, 3, 5]


def test_articles(tmp_path, caplog):
    path = str(write(tmp_path, FILES["hyperpartisan"]))
    data = load(DataOptions(task="hyperpartisan", path=path))
    assert data["train"].features["label"].names == ["mainstream", "hyperpartisan"]
    rows = [row for split in data.values() for row in split]
    assert len(rows) == 30
    for row in rows:
        number = int(row["id"])
        assert row["text"] == f"Title & {number}\nPara{number} link, Q&A. Second one {number} see"
        assert row["label"] == int(number % 3 == 0)
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        data = load(DataOptions(task="hyperpartisan", path=path, split="longformer"))
    assert data["test"]["id"][:] == [f"test/{number:07}" for number in (6, 0, 4, 1)]
    assert "3 of its 4 test articles are also in train or dev" in caplog.text


def test_clean_splits_keep_near_duplicates_together(tmp_path):
    shared = " ".join(f"word{i}" for i in range(60))
    texts = [shared if i in (3, 17, 20) else f"text {i}" for i in range(30)]
    articles = [f'<article id="{i:07}" title="T{i}"><p>{text} end{i}</p></article>' for i, text in enumerate(texts)]
    write(tmp_path, FILES["hyperpartisan"] | {ARTICLES: xml("articles", articles)})
    for seed in range(12):
        data = load(DataOptions(task="hyperpartisan", path=str(tmp_path), split_seed=seed))
        homes = {split for split in data for i in data[split]["id"] if int(i) in (3, 17, 20)}
        assert len(homes) == 1, seed


def test_papers(tmp_path):
    data = load(DataOptions(task="arxiv", path=str(write(tmp_path, FILES["arxiv"]))))
    assert [len(data[split]) for split in ("train", "validation", "test")] == [11, 11, 11]
    assert data["test"]["label"][:] == list(range(11))
    assert data["test"][2]["text"] == "arXiv:2 [] test\n\nAs in  and AT"  # as the hub's no_ref cuts it


def of(*items):
    return xml("benchmark", items)


def articles(*items):
    return xml("articles", items)


COQA, ITEMS, DEV = "coqa-train-v1.0.json", "train.json", "dev/1/a_dev.xml"
NO = ": not as the task's records are published: "


@pytest.mark.parametrize(
    ("task", "file", "content", "message"),
    [
        ("webnlg", DEV, of("<entry category='x' eid='1'><lex>a</entry>"), f"{NO}ParseError: mismatched tag: line 3"),
        ("webnlg", DEV, of("<entry><mtriple>a | b</mtriple><lex>a</lex></entry>"), f"{NO}ValueError: zip() argument"),
        ("webnlg", DEV, of("<entry eid='1'><lex>a</lex></entry>"), ":entry 1: no triples, or no text"),
        ("e2e", "devset.csv", "mr,ref\na,b\nc\n", ":3: the row has 1 fields, expected 2"),
        ("e2e", "devset.csv", b"mr,ref\na,caf\xe9\n", ":2:6: byte 0xe9 is not valid UTF-8"),
        ("coqa", COQA, '{"data": [', ":1:11: malformed JSON"),
        ("coqa", COQA, talks(talk(1), talk(2, story=" ")), ":record 2: 'story' is empty"),
        ("coqa", COQA, talks(talk(1, answers=turns("a"))), f":record 1{NO}ValueError: zip() argument 2 is shorter"),
        ("coqa", COQA, talks(talk(1, questions=[{}])), f":record 1{NO}KeyError: 'input_text'; fetch its file again"),
        ("coqa", COQA, talks(talk(1), talk(1)), ":record 2: id 'c1/1' was already used at"),
        ("squality", "dev.jsonl", lines(story("a"), story("b", metadata={})), f":2{NO}KeyError: 'passage_id'"),
        ("wikihop", ITEMS, json.dumps([item(1, answer="Italy")]), ":item 1: the answer 'Italy' is not among the 3"),
        ("wikihop", ITEMS, json.dumps([item(1, candidates=[])]), ":item 1: 'candidates' holds [], expected a list"),
        ("hyperpartisan", ARTICLES, articles("<article title='x' id='y'/>"), f":article 1{NO}KeyError: 'y'"),
        ("hyperpartisan", TRUTH, "<articles>", ": malformed XML: ParseError"),
        (
            "hyperpartisan",
            "hp-splits.json",
            '{"train": [1], "dev": [2], "test": [999]}',
            ": not as published: KeyError",
        ),
        ("arxiv", "val_data.txt", '{"text": "t", "label": "cs.XX"}', ":1: label 'cs.XX' is no subject"),
        ("arxiv", "val_data.txt", '{"text": "cs.AI", "label": "cs.AI"}', ":1: the document is empty"),
    ],
)
def test_what_is_malformed_is_named(tmp_path, task, file, content, message):
    write(tmp_path, FILES[task] | {file: content})
    with pytest.raises(DataError) as caught:
        read(task, tmp_path, **({"split": "longformer"} if file == "hp-splits.json" else {}))
    assert f"{tmp_path / file}{message}" in str(caught.value)


@pytest.mark.parametrize("task", FILES)
def test_a_missing_file_is_an_error_of_its_own(tmp_path, task):
    missing = next(name for name in FILES[task] if "no_lex" not in name)
    files = {name: text for name, text in FILES[task].items() if Path(name).parts[0] != Path(missing).parts[0]}
    with pytest.raises(MissingDataError):
        read(task, write(tmp_path, {"other": ""} | files))


@pytest.mark.parametrize("kind", ["tar.gz", "tar.xz", "zip"])
def test_damaged_archives(tmp_path, kind):
    task = "e2e" if kind == "zip" else "20newsgroups"
    whole = packed(tmp_path / f"whole.{kind}", FILES[task]).read_bytes()
    for content in (whole[: len(whole) // 2], b"no archive at all", b""):
        path = tmp_path / f"damaged.{kind}"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"damaged\..*: the archive is damaged or no tar or zip archive"):
            read(task, path)


@pytest.mark.parametrize(
    ("task", "kind", "file"),
    [("20newsgroups", "tar.gz", "20news-bydate-train/sci.med/1"), ("e2e", "zip", "trainset.csv")],
)
def test_archives_that_unpack_to_more_than_any_data_set(tmp_path, monkeypatch, task, kind, file):
    monkeypatch.setattr(base, "MOST_UNPACKED", 10_000)
    with pytest.raises(DataError, match="unpacks to more than 10,000 bytes"):
        read(task, packed(tmp_path / f"a.{kind}", {file: "a" * 10_001}))


REAL = {  # examples, and references, by split
    "webnlg": ([6940, 872, 1862], [18102, 2268, 4928]),
    "e2e": ([4862, 547, 630], [42061, 4672, 4693]),
    "squality": ([250, 125, 260], [1000, 500, 1040]),
}


@pytest.mark.parametrize("task", [pytest.param(task, marks=here(task)) for task in REAL])
def test_the_real_files_of_generation(task):
    splits = read(task, RAW / TASKS[task].place)
    found = [[len(examples) for examples in splits.values()]]
    found.append([sum(len(one.references) for one in examples) for examples in splits.values()])
    assert tuple(found) == REAL[task]
    if task == "webnlg":
        assert Counter(one.part for one in splits["test"]) == {"seen": 971, "unseen": 891}
        with tarfile.open(RAW / "webnlg" / "webnlg_challenge_2017.tar.xz") as tar:  # the file of the unseen categories
            file = tar.extractfile("webnlg_challenge_2017/test/testdata_unseen_with_lex.xml")
            entries = ElementTree.fromstring(file.read()).iter("entry")
        texts = {tuple(lex.text.strip() for lex in entry.iter("lex")) for entry in entries}
        assert {one.references for one in splits["test"] if one.part == "unseen"} == texts


@here("20newsgroups")
def test_the_real_posts():
    from sklearn.datasets import _twenty_newsgroups as rules

    plain = read("20newsgroups", RAW / "20newsgroups", remove=[])
    assert {split: len(documents) for split, documents in plain.items()} == {"train": 11314, "test": 7532}
    assert tuple(sorted({document.label for document in plain["test"]})) == TASKS["20newsgroups"].labels
    for document in plain["test"][::75]:
        text = rules.strip_newsgroup_header(document.text)
        text = rules.strip_newsgroup_quoting(rules.strip_newsgroup_footer(text))
        assert strip(document.text, ["quotes", "footers", "headers"]) == text


@here("hyperpartisan")
def test_the_real_articles(caplog):
    data = load(DataOptions(task="hyperpartisan", path=str(RAW / "hyperpartisan")))
    assert [len(data[split]) for split in ("train", "validation", "test")] == [514, 65, 66]
    assert sum(Counter(split["label"])[1] for split in data.values()) == 238
    homes = {i: split for split in data for i in data[split]["id"]}
    assert len(homes) == 645
    for one, other in ((121, 65), (384, 383), (580, 386), (103, 68), (79, 78)):  # copies and near copies
        assert homes[f"{one:07}"] == homes[f"{other:07}"]
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        data = load(DataOptions(task="hyperpartisan", path=str(RAW / "hyperpartisan"), split="longformer"))
    assert [len(data[split]) for split in ("train", "validation", "test")] == [516, 64, 65]
    assert "58 of its 65 test articles" in caplog.text
