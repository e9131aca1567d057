"""Splits that papers and their programs use, each by its name."""

import pytest

from foretoken.data.documents import Document
from foretoken.data.examples import GenerationExample
from foretoken.data.options import DataOptions
from foretoken.data.tasks import generation, hyperpartisan, topics
from foretoken.errors import DataError


def posts(half, count):
    return [
        Document(f"{label}/{i}", f"{half} post {i} of {label}", label, "here")
        for label in ("sci.med", "sci.space")
        for i in range(count)
    ]


@pytest.mark.parametrize("split", ["bydate-halved", "60-20-20"])
def test_20_newsgroups(split):
    halves = {"train": posts("train", 10), "test": posts("test", 6)}
    found = topics.arranged(halves, DataOptions(task="20newsgroups", split=split))
    assert {name: len(documents) for name, documents in found.items()} == {"train": 20, "validation": 6, "test": 6}
    parts, before = ({name: {one.text for one in own} for name, own in of.items()} for of in (found, halves))
    assert set.union(*parts.values()) == set.union(*before.values())
    assert {document.label for document in found["test"]} == {"sci.med", "sci.space"}
    by_date = split == "bydate-halved"
    assert (parts["train"] == before["train"]) == (not parts["test"] & before["train"]) == by_date


def test_coqa_with_500_questions_for_validation():
    examples = [GenerationExample(f"c{i // 10}/{i}", f"q {i}", ("a",), "here", group=f"c{i // 10}") for i in range(620)]
    options = DataOptions(task="coqa", split="500-instances")
    found = generation.split_off_500(examples, options)
    assert {name: len(documents) for name, documents in found.items()} == {"train": 120, "validation": 500}
    assert not {one.id for one in found["train"]} & {one.id for one in found["validation"]}
    assert found == generation.split_off_500(examples, options)
    assert found != generation.split_off_500(examples, DataOptions(task="coqa", split="500-instances", split_seed=1))
    assert generation.split_off_500(examples, DataOptions(task="coqa")) == {"train": examples}
    with pytest.raises(DataError, match="takes 500 questions from train, which has 7"):
        generation.split_off_500(examples[:7], options)


def test_hyperpartisan_on_its_published_validation_part(tmp_path, caplog):
    (tmp_path / "hp-splits.json").write_text('{"train": [1, 2], "dev": [3], "test": [4]}')
    documents = [Document(f"{number:07}", f"text {number}", "mainstream", "here") for number in (1, 2, 3, 4)]
    found = hyperpartisan._published(tmp_path / "hp-splits.json", documents, "longformer-validation")
    assert found["test"] == found["validation"] == [documents[2]]
    assert "selects on the published validation part" in caplog.text
