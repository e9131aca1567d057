"""Documents of one patient, author or thread: no split and no fold divides them, and no metric knows of them."""

import json
import random

import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions

PROBLEMS = ["classification", "multi-label-classification", "regression", "multiple-choice"]


def random_rows(seed, problem):
    """Return rows of groups of any size, of one class or several, some without a group, some with a text of another."""
    generator = random.Random(seed)
    rows = []
    for group in range(generator.randint(20, 40)):
        for _ in range(generator.choice([1, 1, 2, 3, 9])):
            kind = generator.choices("abc", (5, 3, 1 + (group < 15)))[0]
            label = {
                "regression": generator.random(),
                "multi-label-classification": [*generator.sample("abc", generator.randint(0, 2))],
                "multiple-choice": generator.randint(0, 1),
            }.get(problem, kind)
            copied = generator.choice(rows)["text"] if rows and generator.random() < 0.03 else None
            row = {"id": f"d{len(rows)}", "text": copied or f"text {len(rows)}", "label": label, "choices": ["x", "y"]}
            rows.append(row | ({"who": generator.choice([group, float(group)])} if generator.random() < 0.8 else {}))
    return rows


def loaded_rows(path, rows, **options):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_data(DataOptions(path=str(path), group_column="who", **options))
    return loaded, {row["id"]: split for split, table in loaded.splits.items() for row in table}


def assert_whole(rows, home):
    """No group and no text is in two splits."""
    for name in ("who", "text"):
        splits = {}
        for row in rows:
            if row.get(name) is not None and row["id"] in home:
                splits.setdefault(row[name], set()).add(home[row["id"]])
        assert all(len(places) == 1 for places in splits.values())


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("seed", range(3))
def test_no_split_and_no_fold_divides_a_group(tmp_path, problem, seed):
    rows, path = random_rows(seed, problem), tmp_path / "a.jsonl"
    loaded, home = loaded_rows(path, rows, problem=problem, split_seed=seed, validation_fraction=0.2)
    assert not loaded.grouped
    assert len(home) == len(rows)
    assert_whole(rows, home)
    in_order = {row["id"]: split for split, table in loaded.splits.items() for row in table}
    assert in_order == loaded_rows(path, rows[::-1], problem=problem, split_seed=seed, validation_fraction=0.2)[1]
    counted = loaded.left_out["groups"]
    assert sum(counted["groups"].values()) == len({row["who"] for row in rows if "who" in row})
    assert sum(counted["without"].values()) == sum("who" not in row for row in rows)
    tested = []
    for fold in range(3):
        _, home = loaded_rows(path, rows, problem=problem, folds=3, fold=fold, fold_seed=seed)
        assert_whole(rows, home)
        tested += [key for key, split in home.items() if split == "test"]
    assert sorted(tested) == sorted(row["id"] for row in rows)


def test_a_subsample_of_groups_is_as_large_as_asked_for(tmp_path):
    rows = random_rows(1, "classification")
    loaded, home = loaded_rows(tmp_path / "a.jsonl", rows, max_train=20, max_test=5)
    assert (len(loaded.splits["train"]), len(loaded.splits["test"])) == (20, 5)
    assert_whole(rows, home)


def test_a_class_that_only_mixed_groups_have_is_in_train_and_a_large_group_in_no_other_split(tmp_path):
    """The first document of every group is of the other class, and most documents are of one group."""
    rows = [
        {"id": f"{g}{n}", "text": f"t {g} {n}", "label": "ab"[n > 0 and g < 6], "who": g}
        for g in range(20)
        for n in (0, 1)
    ]
    rows += [{"id": f"big{n}", "text": f"big {n}", "label": "a", "who": "big"} for n in range(60)]
    for seed in range(5):
        loaded, home = loaded_rows(tmp_path / "a.jsonl", rows, split_seed=seed)
        assert {home[f"big{n}"] for n in range(60)} == {"train"}
        for split in loaded.splits.values():
            assert len({*split["label"]}) == 2


def test_groups_of_two_given_splits_are_named_and_a_split_may_lack_the_column(tmp_path, caplog):
    for split, groups in {"train": ["p1", "p2", "p3"], "validation": [None], "test": ["p3", "p4"]}.items():
        rows = [
            {"text": f"{split} {n}", "label": "ab"[n % 2], **({"who": groups[n % len(groups)]} if groups[0] else {})}
            for n in range(6)
        ]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_data(DataOptions(path=str(tmp_path), group_column="who"))
    assert "1 of 2 groups of test are in train too, and scores on their documents are too good: p3" in caplog.text
    assert loaded.left_out["groups"] == {
        "column": "who",
        "groups": {"train": 3, "validation": 0, "test": 2},
        "without": {"train": 0, "validation": 6, "test": 0},
    }
