"""Every promise of docs/promises.md names a test that exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMISES = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs" / "promises.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| promise", "| ---"))
]


@cache
def functions_in(file):
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("promise", "held_by"), PROMISES, ids=range(len(PROMISES)))
def test_a_promise_is_held_by_tests(promise, held_by):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", held_by)
    assert promise.endswith(".")
    assert named
    assert [name for file, name in named if name not in functions_in(file)] == []
