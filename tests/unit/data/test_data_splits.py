"""The pure parts: splits, subsamples, near duplicates, label order, cleaning of texts."""

import pytest

from foretoken.data.documents import Document, sort_labels
from foretoken.data.splits import near_duplicates, split_off, subsample
from foretoken.data.tasks.hyperpartisan import clean_article, strip_tags
from foretoken.errors import ConfigError, DataError


def documents(sizes, groups=None):
    made = [Document(f"{label}{i}", f"{label} {i}", label, "x") for label, size in sizes.items() for i in range(size)]
    if groups is None:
        return made
    return [Document(d.id, d.text, d.label, d.where, groups[i]) for i, d in enumerate(made)]


def test_the_split_is_the_same_on_every_machine():
    _, parts = split_off(documents({"a": 20, "b": 20}), {"test": 0.1}, seed=0)
    assert [d.id for d in parts["test"]] == ["a1", "a11", "b0", "b18"]


def test_groups_are_never_divided():
    groups = [f"g{i // 5}" for i in range(60)]
    rest, parts = split_off(documents({"a": 40, "b": 20}, groups), {"test": 0.25, "validation": 0.1}, seed=0)
    homes = {}
    for name, part in {"": rest, **parts}.items():
        for document in part:
            assert homes.setdefault(document.group, name) == name
    assert set(homes.values()) == {"", "test", "validation"}


def test_a_group_larger_than_the_share_leaves_documents_for_train():
    groups = ["g0"] * 18 + ["g1", "g2"]
    for seed in range(6):
        rest, parts = split_off(documents({"a": 20}, groups), {"test": 0.5, "validation": 0.4}, seed=seed)
        assert rest
        assert all(parts.values())
    with pytest.raises(DataError, match=r"'a' \(2\)"):
        split_off(documents({"a": 19}, groups[:19]), {"test": 0.1, "validation": 0.1}, seed=0)


def test_subsample_is_exact_and_keeps_every_class_and_the_order():
    full = documents({"a": 90, "b": 9, "c": 1})
    for maximum in (3, 7, 10, 50, 99):
        kept = subsample(full, maximum, 0, "max_train")
        assert len(kept) == maximum
        assert {d.label for d in kept} == {"a", "b", "c"}
        assert kept == [d for d in full if d in kept]
    assert subsample(full, 100, 0, "max_train") is full
    with pytest.raises(ConfigError, match="max_train=2 is below the number of classes"):
        subsample(full, 2, 0, "max_train")


def test_near_duplicates_are_chained_to_their_first():
    words = [f"w{i}" for i in range(40)]
    texts = [
        " ".join(words[:20]),
        "another text altogether, of nine words or so",
        " ".join(words[8:30]),
        " ".join(words),
    ]
    assert near_duplicates(texts) == [0, 1, 0, 0]
    assert near_duplicates(["", "short", "SHORT"]) == [0, 1, 1]


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["10", "9", "9"], ["9", "10"]),
        (["2", "1.5", "-3"], ["-3", "1.5", "2"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["nan", "1"], ["1", "nan"]),
    ],
)
def test_label_order(labels, order):
    assert sort_labels(labels) == order


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("a\u00a0b\n\n c", "a b c"),
        ("Q&amp;A &#8220;x&#8221; &nosuch; R&D", "Q&A \u201cx\u201d &nosuch; R&D"),
        ("see http://a.b/c?d=e, or www.f.g now", "see or now"),
        ("and/or", "and/or"),
        ("wait..... what ! ! ! ! !", "wait. what !"),
        ("three... dots", "three... dots"),
        ("a -------- b", "a - b"),
    ],
)
def test_clean_article(raw, clean):
    assert clean_article(raw) == clean


def test_strip_tags_keeps_comparisons():
    assert strip_tags("<div class='x'>3 < 4 and <b>bold</b></div>").split() == ["3", "<", "4", "and", "bold"]
