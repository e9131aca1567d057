"""The tables of families that the documentation and the command show."""

from foretoken.backbones import BACKBONES
from foretoken.methods import METHODS
from foretoken.training.model.support import support, tasks

from support import tiny


def test_only_what_must_be_is_empty():
    cells = support()
    assert set(cells) == set(METHODS) - {"stack"}
    empty = {(method, family) for method, row in cells.items() for family, reason in row.items() if reason}
    assert {method for method, _ in empty} == {"bitfit"}
    assert all(list(row) == list(BACKBONES) for row in cells.values())


def test_tasks_are_those_of_transformers():
    for family in tiny.FAMILIES:
        assert len(list(tasks(family.split(",")[0]))) == len(set(tiny.tasks(family)) - {"FEATURE_EXTRACTION"})
