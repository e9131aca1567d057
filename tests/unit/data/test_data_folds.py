"""Folds: every document is tested once, and nothing that is like it is trained on."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.data.documents import Corpus, Document
from foretoken.data.folds import assigned, pooled
from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.splits import together
from foretoken.data.tasks.table import TASKS
from foretoken.errors import ConfigError, DataError

from support.tiny_run import documents, write_csv


@st.composite
def corpora(draw):
    """Draw labels, texts of which some repeat, and groups; every class has as many different texts as folds."""
    folds = draw(st.integers(2, 5))
    sizes = draw(st.lists(st.integers(folds, 15), min_size=1, max_size=3))
    made = [(str(label), f"{label} {number}", None) for label, size in enumerate(sizes) for number in range(size)]
    more = draw(st.lists(st.tuples(st.sampled_from(made), st.sampled_from([None, "g", "h"])), max_size=8))
    made += [(label, f" {text}\n", group) for (label, text, _), group in more]
    return folds, draw(st.permutations(made)), draw(st.integers(0, 3))


@settings(deadline=None)
@given(corpora())
def test_whatever_is_alike_is_in_one_fold_and_every_class_is_spread(corpus):
    folds, made, seed = corpus
    strata, texts, groups = (list(column) for column in zip(*made, strict=True))
    keys = together(texts, groups)
    if any(len({key for key, own in zip(keys, strata, strict=True) if own == label}) < folds for label in set(strata)):
        return  # too few after all, as groups have joined them
    found = assigned(strata, keys, folds, seed)
    assert set(found) <= set(range(folds))
    for names in (keys, [" ".join(text.split()) for text in texts]):
        homes = {}
        assert all(homes.setdefault(name, fold) == fold for name, fold in zip(names, found, strict=True))
    by_group = {(group, fold) for group, fold in zip(groups, found, strict=True) if group is not None}
    assert len(by_group) == len(set(groups) - {None})
    largest = max(Counter(keys).values())
    for label in set(strata):
        counts = Counter(at for own, at in zip(strata, found, strict=True) if own == label)
        assert max(counts.values()) - min(counts[fold] for fold in range(folds)) <= largest


@settings(deadline=None)
@given(st.lists(st.integers(5, 20), min_size=1, max_size=4), st.integers(2, 5), st.integers(0, 3))
def test_without_groups_classes_and_folds_are_even_to_one(sizes, folds, seed):
    strata = [str(label) for label, size in enumerate(sizes) for _ in range(size)]
    found = assigned(strata, together([str(n) for n in range(len(strata))], [None] * len(strata)), folds, seed)
    for label in {*strata, None}:
        counts = Counter(fold for own, fold in zip(strata, found, strict=True) if label in (own, None))
        assert max(counts.values()) - min(counts[fold] for fold in range(folds)) <= 1


def test_groups_and_texts_join_in_turn_whatever_their_order():
    texts, groups = ["a b", "a  b", "c", "d", "c"], [None, "g", "g", "h", None]
    keys = together(texts, groups)
    assert (len({*keys[:3], keys[4]}), len(set(keys))) == (1, 2)
    assert together(texts[::-1], groups[::-1]) == keys[::-1]


def split_ids(options):
    return {split: list(table["id"]) for split, table in load_data(options).splits.items()}


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_every_document_is_tested_once_and_is_in_no_other_split_of_its_fold(tmp_path, folds):
    path = write_csv(tmp_path / "mail.csv", documents(61))
    tested = Counter()
    for fold in range(folds):
        ids = split_ids(DataOptions(path=str(path), folds=folds, fold=fold))
        assert Counter(id for own in ids.values() for id in own) == Counter(str(n) for n in range(61))
        assert len(ids["validation"]) == pytest.approx(0.1 * (61 - len(ids["test"])), abs=2)
        tested.update(ids["test"])
    assert tested == Counter(str(n) for n in range(61))


def test_folds_follow_the_documents_and_their_seed_not_the_order_of_the_file(tmp_path):
    rows = list(documents(40))
    one = write_csv(tmp_path / "one.csv", rows)
    other = write_csv(tmp_path / "other.csv", rows[::-1])

    def texts(path, **options):
        tables = load_data(DataOptions(path=str(path), folds=4, fold=1, **options)).splits
        return {split: sorted(table["text"]) for split, table in tables.items()}

    assert texts(one) == texts(other) == texts(one, split_seed=3, max_train=100)
    assert texts(one) != texts(one, fold_seed=1)


def test_splits_of_the_source_are_pooled_with_ids_that_all_folds_share(tmp_path):
    (tmp_path / "mail").mkdir()
    write_csv(tmp_path / "mail" / "train.csv", list(documents(30)))
    write_csv(tmp_path / "mail" / "test.csv", list(documents(12, seed=1)))
    options = DataOptions(path=str(tmp_path / "mail"), folds=3, fold=0)
    tested = Counter(id for fold in range(3) for id in split_ids(replace(options, fold=fold))["test"])
    assert tested == Counter([f"train/{n}" for n in range(30)] + [f"test/{n}" for n in range(12)])


def test_rows_that_are_scored_together_keep_their_split_in_the_name_of_their_group():
    train = [Document("0/0", "a", "no", "x", group="0"), Document("0/1", "b", "no", "x", group="0")]
    test = [Document("0/2", "c", "yes", "x", group="0")]
    corpus, keys = pooled(Corpus({"train": train, "test": test}, grouped=True), lambda example: example.group)
    assert [example.group for example in corpus.splits["train"]] == ["train/0", "train/0", "test/0"]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(("task", "id", "kept"), [("pydocs", "scipy/a.py#3", "scipy/a.py"), ("multirc", "7/1/0", "7")])
def test_tasks_say_what_folds_must_keep_whole(task, id, kept):
    assert TASKS[task].fold_group(Document(id, "a", "b", "x")) == kept


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"folds": 1}, "folds: got 1, expected at least 2"),
        ({"folds": 5, "fold": 5}, "fold: got 5, expected 0 to 4 with 5 folds"),
        ({"fold": 1}, "fold is set without folds"),
        ({"folds": 5, "test_fraction": 0.2}, "test_fraction and folds exclude each other"),
        ({"folds": 5, "split": "official", "path": None, "task": "rte"}, "split and folds exclude each other"),
    ],
)
def test_options_that_contradict_folds_are_named(values, part):
    with pytest.raises(ConfigError) as caught:
        DataOptions(**{"path": "mail.csv"} | values)
    assert part in str(caught.value)
    assert str(caught.value).count(";") <= 1


def test_more_folds_than_documents_of_a_class_and_no_fold_are_refused(tmp_path):
    path = write_csv(tmp_path / "mail.csv", [*documents(20), ("once", "rare"), ("twice", "rare"), ("twice ", "rare")])
    with pytest.raises(
        DataError, match=r"'rare' \(2\): data.folds: 3 needs 3 of each; at most 2 can.*data.min_documents: 3\)"
    ):
        load_data(DataOptions(path=str(path), folds=3, fold=0))
    with pytest.raises(ConfigError, match=r"but data.fold does not say which fold is the test: set it to 0 to 1"):
        load_data(DataOptions(path=str(path), folds=2))
    with pytest.raises(DataError, match=r"'rare' \(1\): train and validation need 2 of each"):
        load_data(DataOptions(path=str(path), folds=2, fold=0))
