"""Of two classes one is positive, and last: the rarer one, or the one that is named."""

import json
import random
from collections import Counter

import pytest

from foretoken.data.checks import names_of
from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import TASKS
from foretoken.errors import ConfigError
from foretoken.metrics import classification_metrics
from foretoken.training.run.record import data_as_begun

from support.made_up import made_up


def write(path, labels):
    rows = [json.dumps({"text": f"text {number}", "label": label}) for number, label in enumerate(labels)]
    path.write_text("\n".join(rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("seed", range(4))
def test_the_rarer_class_is_last_whatever_it_is_called(tmp_path, caplog, seed):
    draw = random.Random(seed)
    names = draw.sample(["0", "1", "yes", "no", "Ham", "ham spam", "\xe9t\xe9", "-1", "cancer", "not cancer"], 2)
    sizes = draw.sample([8, 20, 21, 60], 2) if seed % 4 else [20, 20]
    labels = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
    draw.shuffle(labels)
    path = write(tmp_path / "a.jsonl", labels)
    loaded = {fold: load_data(DataOptions(path=path, folds=4, fold=fold)).labels for fold in range(4)}
    loaded[None] = load_data(DataOptions(path=path)).labels
    second, rarest = sorted(names)[1], Counter(labels).most_common()[-1][0]
    expected = rarest if sizes[0] != sizes[1] else second
    assert {tuple(found) for found in loaded.values()} == {(next(name for name in names if name != expected), expected)}
    for name in names:
        assert load_data(DataOptions(path=path, positive=name)).labels[1] == name


def test_nothing_found_of_the_rare_class_is_no_f1(tmp_path, caplog):
    caplog.set_level("INFO")
    labels = ["cancer" if number % 8 == 0 else "not cancer" for number in range(80)]
    loaded = load_data(DataOptions(path=write(tmp_path / "a.jsonl", labels)))
    truth = loaded.splits["train"]["label"]
    assert classification_metrics([[0.9, 0.1]] * len(truth), list(truth))["f1"] == 0
    assert "F1, precision and recall are of class 'cancer' (10 of 80 documents): the rarer one" in caplog.text
    assert loaded.splits["train"].features["label"].names == ["not cancer", "cancer"]


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["a", "b"], {"positive": "A"}, r"data.positive: train has no class 'A' \(there is 'a'.*its classes are a, b"),
        (["a", "b", "c"], {"positive": "a"}, r"data.positive: got 'a', but train has 3 classes \(a, b, c\).*labels"),
        (["1", "2"], {"positive": "1", "problem": "regression"}, "positive is for classification, got problem"),
    ],
)
def test_a_class_that_cannot_be_positive(tmp_path, labels, options, message):
    with pytest.raises(ConfigError, match=message):
        load_data(DataOptions(path=write(tmp_path / "a.jsonl", labels * 12), **options))


def test_a_task_keeps_its_order_unless_another_is_named():
    kept = made_up(TASKS["hyperpartisan"], 30)
    assert names_of(kept) == ["mainstream", "hyperpartisan"]
    assert names_of(kept, "mainstream") == ["hyperpartisan", "mainstream"]
    with pytest.raises(ConfigError, match=r"data.positive is for classification, got data for token-class"):
        names_of(made_up(TASKS["conll2003"], 20), "O")


def test_a_run_goes_on_with_the_class_that_it_was_begun_with(tmp_path):
    data = DataOptions(path=write(tmp_path / "a.jsonl", ["a"] * 8 + ["b"] * 20))
    before = {"problem": "classification", "labels": ["a", "b"]}  # of a version that put the second one last
    assert load_data(data_as_begun(data, before)).labels == ["a", "b"] != load_data(data).labels
    assert data_as_begun(data, {"problem": "regression", "labels": []}) is data
