"""Small valid data files of every format, and what may happen to them."""

import csv
import io
import json
import math
import random

import datasets
import pyarrow
from hypothesis import strategies as st
from pyarrow import parquet

from support.tiny_run import FILLER, SIGNS, documents

COUNT = 40
PROBLEMS = {  # what a file of each name poses
    "a.csv": "classification",
    "a.tsv": "classification",
    "a.jsonl": "classification",
    "a.ndjson": "regression",
    "a.json": "classification",
    "a.parquet": "classification",
    "b.parquet": "multiple-choice",
    "labels": "classification",
    "splits": "classification",
    "saved": "classification",
    "choices.jsonl": "multiple-choice",
    "words.conll": "token-classification",
    "words.jsonl": "token-classification",
    "words.parquet": "token-classification",
    "hops.json": "candidates",
    "targets.jsonl": "generation",
    "targets.csv": "generation",
}
TEXTS = [
    "",
    " ",
    "word1 " * 3000,
    "\x00",
    "a\x00b",
    "\ud800",
    "\ufeff",
    "\r\n",
    "a\rb",
    "a,b\tc;d",
    "=1+1",
    "1_0",
    "10",
]
QUOTED = ['"', '""', '"a', 'a"', "\x1b[31m", "<b>&", "\u202eham", "\u2028", "\x85", "ham ", "Ham", "h\u200bam"]
NUMBERS = [5, -1, 0, 1.0, 2.5, math.nan, math.inf, True, None, 10**30, 10**4000, "NaN", "inf", "1e999"]
NESTED = [[], {}, ["word1"], {"a": [{}]}, [[1]], ["word1", None], ["a", "b", "c"], ["", ""], ["word1", "word1"]]
HOSTILE = [*TEXTS, *QUOTED, *NUMBERS, *NESTED]
MARKS = [b'"', b"\n", b"\r", b"\0", b",", b"[", b"}", b"\\", b"\t", b" ", b"#doc\n", b"-DOCSTART-\n"]
REPLACED = [(b",", b";"), (b"\n", b"\r\n"), (b"\n", b"\r"), (b"\n", b"\n\n"), (b" ", b"\t"), (b" ", b"\xc2\xa0")]
BEFORE = [b"\xef\xbb\xbf", b"\xff\xfe", b"\n\n", b"PK\x03\x04", b"#"]


def rows_of(problem):
    """Return the valid rows of a problem."""
    chance = random.Random(0)
    for number, (text, label) in enumerate(documents(COUNT)):
        if problem == "classification":
            yield {"text": text, "label": label}
        elif problem == "regression":
            yield {"text": text, "label": number / 8}
        elif problem == "multiple-choice":
            yield {"text": text, "choices": chance.sample(FILLER, k=3), "label": number % 3}
        elif problem == "token-classification":
            yield {"words": text.split(), "tags": ["B-SIGN" if w in SIGNS[label] else "O" for w in text.split()]}
        elif problem == "candidates":
            found = chance.sample(FILLER, k=3)
            yield {"id": f"q{number}", "query": label, "candidates": found, "answer": found[0], "supports": [text]}
        else:
            yield {"text": " ".join(text.split()[:8]), "label": label}


@st.composite
def changes(draw):
    """Return changes of the rows, and of the bytes that they are written as."""
    of_rows = st.one_of(
        st.tuples(st.just("cell"), st.integers(0, COUNT - 1), st.integers(0, 2), st.sampled_from(HOSTILE)),
        st.tuples(st.just("column"), st.integers(0, 2), st.sampled_from(HOSTILE)),
        st.tuples(st.just("repeat"), st.integers(0, COUNT - 1), st.integers(1, 3)),
        st.tuples(st.just("drop"), st.integers(0, COUNT - 1)),
        st.tuples(st.just("rename"), st.integers(0, 2), st.sampled_from(["text", "id", "", "Label", " text", "\x1b"])),
        st.tuples(st.just("swap"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("first"), st.integers(0, 5)),
        st.tuples(st.just("add"), st.sampled_from(["id", "title", "part", "group"]), st.sampled_from(HOSTILE)),
    )
    of_bytes = st.one_of(
        st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
        st.tuples(st.just("insert"), st.floats(0, 1), st.binary(min_size=1, max_size=8)),
        st.tuples(st.just("insert"), st.floats(0, 1), st.sampled_from(MARKS)),
        st.tuples(st.just("delete"), st.floats(0, 1), st.integers(1, 50)),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.just("replace"), st.sampled_from(REPLACED)),
        st.tuples(st.just("before"), st.sampled_from(BEFORE)),
        st.tuples(st.just("twice")),
    )
    return draw(st.lists(of_rows, max_size=3)), draw(st.lists(of_bytes, max_size=2))


def write(folder, name, of_rows, of_bytes):
    """Write the changed file, or folder, and return its path."""
    rows = [dict(row) for row in rows_of(PROBLEMS[name])]
    for kind, *values in of_rows:
        rows = CHANGES[kind](rows, *values)
    path = folder / name
    files = WRITERS[name if name in WRITERS else path.suffix](path, rows)
    content = files[0].read_bytes()
    for kind, *values in of_bytes:
        content = changed_bytes(content, kind, *values)
    files[0].write_bytes(content)
    return path


def cell(rows, number, column, value):
    """Change one value."""
    row = rows[number % len(rows)] if rows else {}
    for name in list(row)[column : column + 1]:
        row[name] = value
    return rows


CHANGES = {
    "cell": cell,
    "column": lambda rows, column, value: [
        {name: value if place == column else old for place, (name, old) in enumerate(row.items())} for row in rows
    ],
    "repeat": lambda rows, number, times: rows + [dict(row) for row in rows[number : number + 1] * times],
    "drop": lambda rows, number: rows[:number] + rows[number + 1 :],
    "rename": lambda rows, column, new: [
        {new if place == column else name: old for place, (name, old) in enumerate(row.items())} for row in rows
    ],
    "swap": lambda rows, one, other: [swapped(row, one, other) for row in rows],
    "first": lambda rows, count: rows[:count],
    "add": lambda rows, name, value: [{name: value} | row for row in rows],
}


def swapped(row, one, other):
    """Return a row with the values of two of its columns exchanged."""
    names = list(row)
    if max(one, other) >= len(names):
        return row
    return row | {names[one]: row[names[other]], names[other]: row[names[one]]}


def changed_bytes(content, kind, *values):
    """Return changed bytes; places are given as shares of the length."""
    place = int(values[0] * len(content)) if values and isinstance(values[0], float) else 0
    if kind == "flip":
        flipped = bytes([content[place] ^ values[1]]) if place < len(content) else b""
        return content[:place] + flipped + content[place + 1 :]
    if kind == "insert":
        return content[:place] + values[1] + content[place:]
    if kind == "delete":
        return content[:place] + content[place + values[1] :]
    if kind == "truncate":
        return content[:place]
    if kind == "replace":
        return content.replace(*values[0])
    return values[0] + content if kind == "before" else content * 2


def as_text(value):
    """Return what a csv file has of a value."""
    return value if isinstance(value, str) else json.dumps(value)


def write_delimited(path, rows):
    """Write csv or tsv."""
    made = io.StringIO(newline="")
    writer = csv.writer(made, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
    writer.writerow(list(rows[0]) if rows else ["text", "label"])
    writer.writerows([[as_text(value) for value in row.values()] for row in rows])
    path.write_bytes(made.getvalue().encode("utf-8", "surrogatepass"))
    return [path]


def write_lines(path, rows):
    """Write an object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [path]


def write_list(path, rows):
    """Write a list of objects."""
    path.write_text("[" + ",\n".join(map(json.dumps, rows)) + "]\n")
    return [path]


def column(values):
    """Return an arrow column of whatever type the values have, else of their texts."""
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError):
        return pyarrow.array([as_text(value).encode("utf-8", "replace").decode() for value in values])


def write_parquet(path, rows):
    """Write a table."""
    names = list(rows[0]) if rows else ["text", "label"]
    columns = [column([row[name] for row in rows]) for name in names]
    parquet.write_table(pyarrow.Table.from_arrays(columns, names=names), path, row_group_size=17)
    return [path]


def write_labels(path, rows):
    """Write a folder of texts per label; the label is whatever text makes a name."""
    path.mkdir()
    files = []
    for number, row in enumerate(rows):
        label, text = (as_text(row.get(name, "x")) for name in ("label", "text"))
        name = "".join(character for character in label if character.isprintable() and character not in "/.")[:50]
        (path / (name or "x")).mkdir(exist_ok=True)
        files.append(path / (name or "x") / f"{number}.txt")
        files[-1].write_bytes(text.encode("utf-8", "surrogatepass"))
    return files or write_lines(path / "none.jsonl", [])


def write_splits(path, rows):
    """Write a folder with a file per split."""
    path.mkdir()
    files = write_delimited(path / "train.csv", rows[8:])
    write_lines(path / "test.jsonl", rows[:8])
    return files


def write_saved(path, rows):
    """Write what `save_to_disk` does, of one file."""
    names = list(rows[0]) if rows else ["text", "label"]
    columns = [column([row[name] for row in rows]) for name in names]
    datasets.Dataset(pyarrow.Table.from_arrays(columns, names=names)).save_to_disk(path)
    return sorted(path.glob("*.arrow")) or [path / "state.json"]  # no rows, no arrow file


def write_words(path, rows):
    """Write a word and its tag per line."""
    sentences = []
    for row in rows:
        values = [value if isinstance(value, list) else [value] for value in row.values()]
        sentences.append("".join(" ".join(map(as_text, pair)) + "\n" for pair in zip(*values, strict=False)))
    path.write_bytes("\n".join(sentences).encode("utf-8", "surrogatepass"))
    return [path]


WRITERS = {
    ".csv": write_delimited,
    ".tsv": write_delimited,
    ".jsonl": write_lines,
    ".ndjson": write_lines,
    ".json": write_list,
    ".parquet": write_parquet,
    ".conll": write_words,
    "labels": write_labels,
    "splits": write_splits,
    "saved": write_saved,
}


def count_rows(path):
    """Return how many rows an independent reader finds in a file or folder."""
    if path.is_dir():
        tables = [count_rows(file) for file in path.iterdir() if file.suffix in (".csv", ".jsonl", ".arrow")]
        return sum(tables) or len(list(path.rglob("*.txt")))
    if path.suffix == ".arrow":
        return pyarrow.ipc.open_stream(path.read_bytes()).read_all().num_rows
    if path.suffix == ".parquet":
        return parquet.read_metadata(path).num_rows
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # which has as many lines as any encoding that is guessed
    if path.suffix in (".csv", ".tsv"):
        style = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
        return len([row for row in csv.reader(io.StringIO(text, newline=""), **style) if row]) - 1
    if path.suffix == ".json" and text.lstrip().startswith("["):
        return len(json.loads(text))
    text = io.StringIO(text, newline=None).read()  # every end of a line as \n
    if path.suffix == ".conll":
        return count_sentences(text)
    return len([json.loads(line) for line in text.split("\n") if line.strip()])


def count_sentences(text):
    """Return how many runs of words there are between blank lines and lines that begin a document."""
    count, within = 0, False
    for line in text.split("\n"):
        words = line.rstrip("\r").replace("\t", " ").split(" ")
        begins = words[0] == "-DOCSTART-" or (words[0] == "#doc" and words[-1] not in ("O", "B-SIGN"))
        is_word = bool(line.strip(" \t\r")) and not begins
        count += is_word and not within
        within = is_word
    return count
