"""The columns of one's own data: found where names or contents leave no doubt, asked for where they do not."""

import csv
import json
import random
import shlex

import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.errors import DataError

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
GENERATOR = random.Random(0)
ROWS = 60


def words(count):
    return " ".join(GENERATOR.choices(WORDS, k=count))


def table(path, columns, *, seed=None):
    """Write a column per name, in a random order with a seed; a function makes a value of the row's number."""
    order = list(columns)
    if seed is not None:
        random.Random(seed).shuffle(order)
    rows = [[columns[name](row) for name in order] for row in range(ROWS)]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([order, *rows])
    return str(path)


def of(*choices):
    return lambda row: choices[row % len(choices)]


def texts(count):
    return lambda row: f"{words(count)} {row}"


def numbers(row):
    return row


CERTAIN = {
    "sms": ({"v1": of("ham", "spam"), "v2": texts(12), "": of("")}, "v2", "v1"),
    "spelling": ({"Text ": texts(3), "LABEL": of(0, 1), "other": texts(9)}, "Text", "LABEL"),
    "tweets": (
        {
            "": numbers,
            "count": of(3),
            "hate_speech": of(0, 1, 2),
            "neither": of(1, 2),
            "class": of(0, 1, 2),
            "tweet": texts(15),
        },
        "tweet",
        "class",
    ),
    "flags": ({"message": texts(15), "spam": of(0, 1), "id": lambda row: f"m{row}"}, "message", "spam"),
    "abstracts": (
        {
            "title": texts(7),
            "abstract": texts(90),
            "date": lambda row: f"2020-01-{row % 28 + 1:02}",
            "journal": of("a", "b"),
        },
        "abstract",
        "journal",
    ),
    "characters": (
        {"内容": lambda row: "天地玄黄宇宙洪荒日月盈昃" + chr(0x4E00 + row), "类别": of("新闻", "体育")},
        "内容",
        "类别",
    ),
}
DOUBTFUL = {
    "two texts": (
        {"ID": numbers, "Resume_str": texts(50), "Resume_html": texts(60), "Category": of("HR", "Arts")},
        "Resume_html",
        "Category",
    ),
    "pairs": ({"sentence1": texts(14), "sentence2": texts(15), "gold": of("yes", "no")}, "sentence2", "gold"),
    "two labels": ({"body": texts(20), "category": of("a", "b"), "topic": of("c", "d")}, "body", "category"),
    "numbers": ({"body": texts(20), "views": of(1, 2, 3), "likes": of(4, 5)}, "body", "NAME"),
    "no text": ({"a b": numbers, "kind": of("a", "b")}, "NAME", "kind"),
}


@pytest.mark.parametrize("name", CERTAIN)
@pytest.mark.parametrize("seed", range(3))
def test_columns_are_found_in_any_order(tmp_path, name, seed):
    columns, text, label = CERTAIN[name]
    path = table(tmp_path / "a.csv", columns, seed=seed)
    found = load_data(DataOptions(path=path))
    named = load_data(DataOptions(path=path, text_column=text, label_column=label))
    assert found.columns == {"text_column": text, "label_column": label}
    assert named.columns == {}
    assert found.splits["train"].to_list() == named.splits["train"].to_list()


@pytest.mark.parametrize("name", DOUBTFUL)
@pytest.mark.parametrize("seed", range(3))
def test_a_doubt_asks_with_the_options_to_copy(tmp_path, name, seed):
    columns, text, label = DOUBTFUL[name]
    with pytest.raises(DataError) as caught:
        load_data(DataOptions(path=table(tmp_path / "a.csv", columns, seed=seed)))
    message = str(caught.value)
    assert f"as in --data.text_column {shlex.quote(text)} --data.label_column {shlex.quote(label)};" in message
    assert "no column 'text' or 'label'" in message
    assert "\n" not in message


def test_what_the_options_name_or_the_defaults_are_is_kept(tmp_path):
    columns = {"text": texts(3), "tweet": texts(30), "label": of("a", "b"), "class": of("c", "d")}
    assert load_data(DataOptions(path=table(tmp_path / "a.csv", columns))).columns == {}
    columns = {"one": texts(30), "two": texts(30), "kind": of("a", "b")}
    found = load_data(DataOptions(path=table(tmp_path / "b.csv", columns), text_column="two"))
    assert found.columns == {"label_column": "kind"}
    with pytest.raises(DataError, match="no column 'twoo'"):
        load_data(DataOptions(path=table(tmp_path / "b.csv", columns), text_column="twoo", label_column="kind"))


def test_numbers_to_predict_need_a_name(tmp_path):
    columns = {"essay": texts(20), "score": lambda row: row / 7}
    found = load_data(DataOptions(path=table(tmp_path / "a.csv", columns), problem="regression"))
    assert found.columns == {"text_column": "essay", "label_column": "score"}
    columns["mass"] = columns.pop("score")
    with pytest.raises(DataError, match=r"--data\.label_column NAME"):
        load_data(DataOptions(path=table(tmp_path / "b.csv", columns), problem="regression"))


def test_other_kinds_of_files_have_the_same_columns(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"kind": "ab"[row % 2], "body": f"{words(20)} {row}", "id": str(row)} for row in range(ROWS)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "f").mkdir()
    for name in ("a.jsonl", "a.json", "a.parquet"):
        assert load_data(DataOptions(path=str(tmp_path / name))).columns == {
            "text_column": "body",
            "label_column": "kind",
        }
    for name in ("spam_train.jsonl", "spam_dev.jsonl"):
        (tmp_path / "f" / name).write_text((tmp_path / "a.jsonl").read_text())
    folder = load_data(DataOptions(path=str(tmp_path / "f")))
    assert folder.columns["text_column"] == "body"
    assert len(folder.splits["validation"]) == ROWS
