"""The task made of installed documentation: what is collected, masked, cached and refused."""

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from foretoken.data.options import DataOptions
from foretoken.data.tasks.pydocs import cache as pydocs_cache
from foretoken.data.tasks.pydocs import task as pydocs
from foretoken.data.tasks.pydocs.sources import MASKED, SOURCES
from foretoken.data.tasks.pydocs.text import docstrings, file_pieces, mask
from foretoken.data.tasks.table import TASKS
from foretoken.errors import DataError

from support.data import load


@pytest.fixture(scope="module")
def built():
    return pydocs.build()


def test_classes_splits_and_lengths(built):
    assert 600 <= len(built) <= 1200
    counts = Counter((doc.label, doc.group) for doc in built)
    for topic in pydocs.LABELS:
        assert counts[topic, "train"] >= 40
        assert counts[topic, "validation"] >= 8
        assert counts[topic, "test"] >= 8
    words = sorted(len(doc.text.split()) for doc in built)
    assert words[0] >= 250  # masking joins a few words
    assert words[-1] <= 3300
    assert words[len(words) // 2] >= 500
    assert words[-len(words) // 10] >= 1500


def test_no_source_file_and_no_text_is_in_two_splits(built):
    homes, seen = {}, {}
    for doc in built:
        assert homes.setdefault(doc.where, doc.group) == doc.group
        for line in doc.text.split("\n"):
            if len(line.split()) >= 25:
                assert seen.setdefault(line, doc.group) == doc.group


def test_no_name_of_package_or_topic_is_left(built):
    names = {"numpy", "scipy", "sklearn", "torch", "pandas", "statistics", "transformers", "optimisation"}
    for doc in built:
        tokens = set("".join(c if c.isalnum() else " " for c in doc.text.lower()).split())
        assert not tokens & names, doc.id


def test_every_source_folder_has_its_name_masked():
    packages = {path.split("/")[0] for paths in SOURCES.values() for path in paths}
    assert packages <= set(MASKED)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("a scipy.sparse.linalg.LinearOperator here", "a [name].LinearOperator here"),
        ("np.linalg.norm(x)", "[name].norm(x)"),
        ("scikit-learn's estimators and PyTorch tensors", "[name]'s estimators and [name] tensors"),
        ("Optimizers for Neural  networks", "[name] for [name]"),
        ("torch_function and mytorch", "[name]_function and mytorch"),
        ("the data frames", "the [name]"),
        ("tablet", "tablet"),
    ],
)
def test_mask(text, masked):
    assert mask(text) == masked


SOURCE = '''"""Module text, which says what it is for."""
import os

def public(x):
    """Do the thing that has to be done.

    Examples
    --------
    >>> import numpy as np
    >>> from os import path
    >>> public(np.ones(3))

    .. versionadded:: 1.2
    """
    def inner():
        """Not collected."""

class Thing:
    """A thing with a method, as things go."""
    def method(self):
        """Do the thing that has to be done."""

_add_docstr(_C.solve, r"""
solve(A) -> {}

Solves it for you.
""".format("Tensor"))
setup("no docstring at all")
'''


def test_docstrings_of_modules_classes_functions_and_c_functions(tmp_path):
    import ast

    found = [(name, text.split("\n")[0]) for name, text in docstrings(ast.parse(SOURCE))]
    assert found == [
        ("", "Module text, which says what it is for."),
        ("public", "Do the thing that has to be done."),
        ("Thing", "A thing with a method, as things go."),
        ("method", "Do the thing that has to be done."),
        ("", ""),
    ]
    (tmp_path / "a.py").write_text(SOURCE)
    texts = [piece.text for piece in file_pieces(tmp_path / "a.py", set())]
    assert texts[1] == "public\nDo the thing that has to be done.\nExamples >>> public(np.ones(3))"
    assert texts[-1] == "solve(A) -> {}\nSolves it for you."
    assert len(texts) == 4  # the repeated paragraph left nothing of the method


def test_a_file_that_cannot_be_parsed_is_passed_over(tmp_path):
    (tmp_path / "a.py").write_text("def (:")
    assert file_pieces(tmp_path / "a.py", set()) == []
    assert file_pieces(tmp_path / "none.py", set()) == []


def package(root, folder, files=12, definitions=12):
    for number in range(files):
        path = root / folder / f"part{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        blocks = [
            f'def f{n}():\n    """{" ".join(f"{Path(folder).name}{number}x{n}w{w}" for w in range(50))}"""\n'
            for n in range(definitions)
        ]
        path.write_text("\n".join(blocks))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Two topics made of two packages written here."""
    monkeypatch.setattr(pydocs, "SOURCES", {"one": ("alpha/core",), "two": ("alpha/extra.py", "beta")})
    monkeypatch.setattr(pydocs, "LABELS", ("one", "two"))
    monkeypatch.setitem(TASKS, "pydocs", replace(pydocs.TASK, labels=("one", "two")))
    package(tmp_path, "alpha/core")
    package(tmp_path, "beta/sub")
    return {"alpha": tmp_path / "alpha", "beta": tmp_path / "beta"}


def test_build_is_deterministic_and_leaves_tests_out(fake):
    first = pydocs.build(fake)
    package(fake["beta"].parent, "beta/tests")
    assert pydocs.build(fake) == first
    assert {doc.group for doc in first} == {"train", "validation", "test"}


def test_a_missing_package_is_tolerated_until_a_topic_is_too_small(fake):
    package(fake["alpha"].parent, "alpha/core2")
    with pytest.raises(DataError, match=r"topic 'two' has 0 documents, expected at least 8.*not installed: .*datasets"):
        pydocs.build({"alpha": fake["alpha"]})


def test_the_cache_is_written_once_read_back_and_rebuilt_when_damaged(tmp_path, monkeypatch, caplog, fake):
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pydocs, "installed", lambda: fake)
    options = DataOptions(task="pydocs")
    first = load(options)
    [file] = (tmp_path / "cache").iterdir()  # no temporary file is left
    assert file == pydocs_cache.cache_file()
    assert first["train"].features["label"].names == ["one", "two"]
    with monkeypatch.context() as patch:
        patch.setattr(pydocs, "build", lambda: pytest.fail("the cache was not used"))
        second = load(options)
    assert all(first[split].to_dict() == second[split].to_dict() for split in first)
    file.write_bytes(b"PAR1 damaged")
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        third = load(options)
    assert "the cache cannot be read" in caplog.text
    assert third["test"].to_dict() == first["test"].to_dict()
    assert pydocs_cache.read_cached() is not None


def test_the_cache_follows_the_installed_versions(monkeypatch):
    before = pydocs_cache.cache_file()
    assert pydocs_cache.cache_file() == before
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0")
    assert pydocs_cache.cache_file() != before


def test_a_write_that_fails_half_way_leaves_nothing_behind(tmp_path, monkeypatch, caplog):
    def fail(table, path):
        Path(path).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pyarrow.parquet.write_table", fail)
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        pydocs_cache.write_cached([])
    assert "no space left" in caplog.text
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_unwritable_cache_is_only_logged(tmp_path, monkeypatch, caplog, fake):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(pydocs, "installed", lambda: fake)
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        assert len(load(DataOptions(task="pydocs"))["train"]) > 0
    assert "the cache could not be written" in caplog.text
