"""Tables of queries and passages: rows of one query together, splits that share no passage, errors by line."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foretoken.data.load import load_data, load_examples, load_inputs
from foretoken.data.options import DataOptions
from foretoken.data.readers.retrieval import read_passages, read_texts
from foretoken.errors import ConfigError, DataError

PLAIN = DataOptions(path="x")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path):
    return load_examples(path, PLAIN, "retrieval", []).to_list()


def test_rows_of_one_query_are_read_as_one(tmp_path):
    rows = [
        {"id": "a", "query": "q", "passage": "p", "negative": "n"},
        {"id": "b", "query": "r", "passage": ["p", "s"], "negative": None},
        {"id": "c", "query": "q", "passage": "t", "negative": ["n", "m", "p"]},
    ]
    first, second = read(write(tmp_path / "pairs.jsonl", rows))
    assert (first["id"], first["passages"], first["negatives"]) == ("a", ["p", "t"], ["n", "m"])  # p answers it
    assert (second["id"], second["passages"], second["negatives"]) == ("b", ["p", "s"], [])
    assert first["group"] == second["group"]  # by the passage that they share


def test_every_kind_of_file_has_the_column_of_negatives(tmp_path):
    columns = {"query": ["q", "r"], "passage": ["p", "s"], "negative": ["n", ""]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("query,passage,negative\nq,p,n\nr,s,\n")
    write(tmp_path / "a.jsonl", pa.table(columns).to_pylist())
    found = [read(tmp_path / f"a.{ending}") for ending in ("parquet", "csv", "jsonl")]
    assert found[0] == found[1] == found[2]
    assert [row["negatives"] for row in found[0]] == [["n"], []]


def test_queries_of_one_passage_are_never_in_two_splits(tmp_path):
    rows = [{"query": f"q{number}", "passage": f"p{number // 3}"} for number in range(60)]
    data = load_data(DataOptions(path=str(write(tmp_path / "a.jsonl", rows)), problem="retrieval"))
    passages = [{text for texts in table["passages"] for text in texts} for table in data.splits.values()]
    assert sum(map(len, passages)) == len(set().union(*passages)) == 20
    assert sum(map(len, data.splits.values())) == 60


def test_inputs_are_queries_and_a_corpus_has_each_passage_once(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"query": "q", "passage": "p"}, {"query": "r", "passage": "p"}])
    assert load_inputs(path, PLAIN, "retrieval").to_list() == [{"id": "0", "query": "q"}, {"id": "1", "query": "r"}]
    assert read_passages(path).texts == ["p"]
    assert read_texts(path, "passage") == ["p", "p"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"query": "q"}, "a.jsonl:1: no column 'passage'"),
        ({"query": " ", "passage": "p"}, "a.jsonl:1: 'query' is empty"),
        ({"query": "q", "passage": []}, "a.jsonl:1: column 'passage' holds an empty list"),
        ({"query": "q", "passage": "p", "negative": 3}, "a.jsonl:1: column 'negative' holds int, expected text"),
    ],
)
def test_what_is_missing_is_named_by_its_line(row, said, tmp_path):
    with pytest.raises(DataError, match=said):
        read(write(tmp_path / "a.jsonl", [row]))


def test_columns_have_names_of_their_own():
    with pytest.raises(ConfigError, match="text_column has no use with problem 'retrieval'"):
        DataOptions(path="a", problem="retrieval", text_column="question")
