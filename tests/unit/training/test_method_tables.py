"""The tables of families that the documentation and the command show."""

import importlib
from pathlib import Path

import pytest

from foretoken.backbones import BACKBONES
from foretoken.methods.table import METHODS

from support import tiny


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[3] / "docs")
    return importlib.import_module("method_list")


def test_only_what_must_be_is_empty(tables):
    cells = tables.support()
    assert set(cells) == set(METHODS) - {"stack"}
    empty = {(method, family) for method, row in cells.items() for family, reason in row.items() if reason}
    assert {method for method, _ in empty} == {"bitfit"}
    assert all(list(row) == list(BACKBONES) for row in cells.values())


def test_tasks_are_those_of_transformers(tables):
    for family in tiny.FAMILIES:
        assert len(list(tables.tasks(family.split(",")[0]))) == len(set(tiny.tasks(family)) - {"FEATURE_EXTRACTION"})
