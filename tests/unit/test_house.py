"""What docs/architecture.md promises of the code's shape: no circles, small folders, typed signatures."""

import ast
import inspect
import re
from collections import Counter, defaultdict
from functools import cache
from graphlib import TopologicalSorter

import grimp
import pytest

from foretoken.data import problems
from foretoken.data.problems import PROBLEMS

from support.count import AT_MOST, ROOT, code_lines, lines_of

SOURCE = ROOT / "src"
FILES = sorted(SOURCE.rglob("*.py"))
MOST_FILES, MOST_LINES = 16, 400  # in one folder, in one file
PROBLEM_NAMES = {*PROBLEMS, *(key for key, value in vars(problems).items() if value in [*PROBLEMS])}
ELSEWHERE = {  # words of configs, of heads, and of a file that stands alone
    "foretoken/bank/info.py": 1,
    "foretoken/exporting/read.py": 2,
    "foretoken/training/run/card.py": 1,
}
VAGUE = {"found", "own", "given", "made", "one", "part", "place"}  # names for at most three lines


@cache
def nodes(file):
    """Return what a file's code is made of."""
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def named(name):
    """Count the uses of a name in the code of src, imports of it left out."""
    return sum(
        name in (getattr(node, "id", None), getattr(node, "attr", None)) for file in FILES for node in nodes(file)
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


@pytest.mark.parametrize("folder", AT_MOST)
def test_the_house_stays_small(folder):
    lines = lines_of(folder)
    print(f"{folder}: {lines:,} lines of code")
    assert lines <= AT_MOST[folder]


def test_files_and_folders_are_small():
    assert not [file.name for file in FILES if len(file.read_text(encoding="utf-8").splitlines()) > MOST_LINES]
    folders = defaultdict(list)
    for file in (file for file in FILES if file.name != "__init__.py"):
        folders[file.parent.relative_to(SOURCE).as_posix()].append(file.name)
    del folders["foretoken_cli/verbs"]  # a file a verb, found by its name
    full = {folder: len(names) for folder, names in folders.items() if len(names) > MOST_FILES}
    assert not full


def test_a_class_has_a_name_of_its_own():
    names = Counter(node.name for file in FILES for node in nodes(file) if isinstance(node, ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1]


def test_only_a_problem_is_asked_its_name():
    found = Counter(
        file.relative_to(SOURCE).as_posix()
        for file in FILES
        for node in nodes(file)
        if isinstance(node, ast.Compare) and any(is_problem(part) for part in ast.walk(node))
    )
    assert found == ELSEWHERE


def is_problem(node):
    """Tell whether a part of an expression is a problem's name, or the constant of it."""
    if isinstance(node, ast.Name):
        return node.id.isupper() and node.id in PROBLEM_NAMES
    return isinstance(node, ast.Constant) and node.value in PROBLEMS


def test_a_variable_that_lives_long_says_what_it_is():
    for file in FILES:
        for function in (node for node in nodes(file) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            lines = defaultdict(list)
            for node in ast.walk(function):
                if isinstance(node, ast.Name | ast.arg):
                    lines[node.id if isinstance(node, ast.Name) else node.arg].append(node.lineno)
            long_lived = {name for name in VAGUE & lines.keys() if max(lines[name]) - min(lines[name]) > 3}
            assert not long_lived, f"{file}: {function.name}"


def test_signatures_are_typed():
    assert 1000 * named("Any") / sum(map(code_lines, FILES)) <= 20
    assert named("__dict__") <= 25


def test_attention_takes_a_mask_and_few_parameters():
    from foretoken.attention import attend

    parameters = inspect.signature(attend).parameters
    assert len(parameters) <= 8
    assert "mask" in parameters
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/contributing.md"])
def test_files_that_a_page_names_are_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+(?:\.py|\.md|/))`", text))
    assert found
    places = (ROOT, SOURCE, SOURCE / "foretoken")
    missing = [name for name in sorted(found) if not any((place / name).exists() for place in places)]
    assert not missing
