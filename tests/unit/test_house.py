"""What docs/architecture.md promises of the code's shape: no circles, small folders, typed signatures."""

import ast
import inspect
import re
from collections import defaultdict
from graphlib import TopologicalSorter

import grimp
import pytest

import foretoken

from support.count import AT_MOST, ROOT, code_lines, lines_of

SOURCE = ROOT / "src"
FILES = sorted(SOURCE.rglob("*.py"))
MOST_FILES = 16  # in one folder


def named(name):
    """Count the uses of a name in the code of src, imports of it left out."""
    return sum(
        (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )


def test_no_files_import_each_other_in_a_circle():
    graph = grimp.build_graph(
        "foretoken", "foretoken_cli", "foretoken_with_peft", cache_dir=None
    )  # late imports and those for types as well
    below = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(below) == len(FILES)
    list(TopologicalSorter(below).static_order())  # CycleError names the circle


def test_a_circle_would_be_seen(tmp_path, monkeypatch):
    package = tmp_path / "round"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from round import two\n")
    (package / "two.py").write_text("def late():\n    from round import one\n    return one\n")
    monkeypatch.syspath_prepend(tmp_path)
    graph = grimp.build_graph("round", cache_dir=None)
    below = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    with pytest.raises(ValueError, match="nodes are in a cycle"):
        list(TopologicalSorter(below).static_order())


@pytest.mark.parametrize("folder", AT_MOST)
def test_the_house_stays_small(folder):
    lines = lines_of(folder)
    print(f"{folder}: {lines:,} lines of code")
    assert lines <= AT_MOST[folder]


def test_folders_are_small():
    folders = defaultdict(list)
    for file in (file for file in FILES if file.name != "__init__.py"):
        folders[file.parent.relative_to(SOURCE).as_posix()].append(file.name)
    del folders["foretoken_cli/verbs"]  # a file a verb, found by its name
    full = {folder: len(names) for folder, names in folders.items() if len(names) > MOST_FILES}
    assert not full


def test_signatures_are_typed():
    assert 1000 * named("Any") / sum(map(code_lines, FILES)) <= 20
    assert named("__dict__") <= 25


def test_attention_takes_a_mask_and_few_parameters():
    from foretoken.attention import attend

    parameters = inspect.signature(attend).parameters
    assert len(parameters) <= 8
    assert "mask" in parameters
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def test_the_public_names_are_listed():
    assert set(foretoken.__all__) <= set(dir(foretoken))


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_are_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+(?:\.py|\.md|/))`", text))
    assert found
    places = (ROOT, SOURCE, SOURCE / "foretoken")
    missing = [name for name in sorted(found) if not any((place / name).exists() for place in places)]
    assert not missing
