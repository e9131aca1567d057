"""What docs/architecture.md promises of the code's shape: no circles, small folders, typed signatures."""

import ast
import inspect
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

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


def files_in_order(graph):
    """Return the files, each after those that it imports; CycleError names a circle."""
    below = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    return list(TopologicalSorter(below).static_order())


def circles_between_rooms(graph):
    """Return the packages whose parts, files and packages, import each other in a circle, and what closes it."""
    rooms = {module.rpartition(".")[0] for module in graph.modules} - {""}
    return {room: found for room in rooms if (found := graph.nominate_cycle_breakers(room))}


def test_neither_files_nor_rooms_import_each_other_in_a_circle():
    graph = grimp.build_graph(
        "foretoken", "foretoken_cli", "foretoken_with_peft", cache_dir=None
    )  # late imports and those for types as well
    assert len(files_in_order(graph)) == len(FILES)
    assert not circles_between_rooms(graph)


def test_circles_would_be_seen(tmp_path, monkeypatch):
    package = tmp_path / "round"
    for name, text in (
        ("one/__init__.py", ""),
        ("one/upper.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from round.two import upper\n"),
        ("one/lower.py", ""),
        ("two/__init__.py", ""),
        ("two/upper.py", "def late():\n    from round.one import lower\n    return lower\n"),
        ("__init__.py", ""),
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    graph = grimp.build_graph("round", cache_dir=None)
    files_in_order(graph)
    assert circles_between_rooms(graph).keys() == {"round"}
    graph.add_import(importer="round.one.lower", imported="round.two.upper")
    with pytest.raises(CycleError, match="nodes are in a cycle"):
        files_in_order(graph)


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


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/contributing.md"])
def test_files_that_a_page_names_are_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+(?:\.py|\.md|/))`", text))
    assert found
    places = (ROOT, SOURCE, SOURCE / "foretoken")
    missing = [name for name in sorted(found) if not any((place / name).exists() for place in places)]
    assert not missing
