"""The table of patches is true: what it names is there, and what the code uses of libraries' internals is in it."""

import ast
import importlib
import importlib.metadata
import inspect
import pkgutil
from pathlib import Path

import pytest
from packaging.version import Version

import foretoken
import foretoken_cli

from support.patched import PATCHED

SOURCES = sorted(path for package in (foretoken, foretoken_cli) for path in Path(package.__file__).parent.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
LIBRARIES = ("accelerate", "peft", "sklearn", "torch", "transformers")
# whole modules of the libraries' that are theirs alone; what stands beside them is documented
INTERNAL = (
    "accelerate.data_loader.",
    "peft.mapping.",
    "peft.tuners.",
    "peft.utils.constants.",
    "peft.utils.integrations.",
    "peft.utils.other.",
    "transformers.activations.",
    "transformers.integrations.",
    "transformers.loss.",
    "transformers.modeling_utils.",
    "transformers.models.",
    "transformers.utils.loading_report.",
)
DOCUMENTED = {"_asdict", "_replace", "_exit"}  # of named tuples and of os


def resolved(path):
    """Return the object at a path, or the module and the name of an attribute that only instances have."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for place, part in enumerate(parts[end:], start=end + 1):
            if not hasattr(found, part):
                assert place == len(parts), f"{path} ends at {'.'.join(parts[: place - 1])}"
                return inspect.getmodule(found), part
            found = getattr(found, part)
        return found, None
    raise AssertionError(f"{path}: no such library")


def is_expected(row):
    version = Version(importlib.metadata.version({"sklearn": "scikit-learn"}.get(row.library, row.library)))
    return Version(row.since or "0") <= version


@pytest.mark.parametrize("row", list(filter(is_expected, PATCHED)), ids=lambda row: row.path)
def test_what_is_patched_is_there(row):
    module, name = resolved(row.path)
    assert name is None or name in inspect.getsource(module)


def test_rows_are_complete():
    assert len({row.path for row in PATCHED}) == len(PATCHED)
    assert {row.how for row in PATCHED} == {"class swapped", "replaced", "registered", "overridden", "read"}
    for row in PATCHED:
        assert row.library in LIBRARIES
        assert row.why
        assert bool(row.undone) == (row.how in ("class swapped", "replaced", "registered")), row.path


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def our_names():
    """What foretoken itself defines: functions, classes, variables, attributes of self, fields."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            match node:
                case (
                    ast.FunctionDef(name=name)
                    | ast.AsyncFunctionDef(name=name)
                    | ast.ClassDef(name=name)
                    | ast.arg(arg=name)
                ):
                    yield name
                case ast.Name(id=name, ctx=ast.Store()):
                    yield name
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    yield name


def private_attributes():
    """Yield the private names that are read or set on objects, by attribute or by getattr and hasattr."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr=name) if is_private(name):
                    yield name, f"{path}:{node.lineno}"
                case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                    if is_private(name):
                        yield name, f"{path}:{node.lineno}"


def imported():
    """Yield the modules of other libraries and what is imported from them."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(LIBRARIES):
                for alias in node.names:
                    yield node.module, alias.name, f"{path}:{node.lineno}"


def test_private_attributes_are_in_the_table():
    known = {row.path.rpartition(".")[2] for row in PATCHED}
    ours = set(our_names()) | DOCUMENTED
    missing = {name: place for name, place in private_attributes() if name not in known | ours}
    assert not missing


def test_imports_from_internal_modules_are_in_the_table():
    missing = {
        f"{module}.{name}": place
        for module, name, place in imported()
        if f"{module}.".startswith(INTERNAL) or any(is_private(part) for part in (*module.split("."), name))
        if not any(f"{row.path}.".startswith(f"{module}.{name}.") for row in PATCHED)
    }
    assert not missing


def test_overridden_private_methods_are_in_the_table():
    known = {row.path.rpartition(".")[2] for row in PATCHED}
    missing = {}
    for info in pkgutil.walk_packages(foretoken.__path__, "foretoken."):
        if info.name == "foretoken.__main__":
            continue
        module = importlib.import_module(info.name)
        for cls in (thing for thing in vars(module).values() if inspect.isclass(thing)):
            if cls.__module__ != info.name:
                continue
            bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in LIBRARIES]
            missing |= {
                f"{cls.__qualname__}.{name}": base.__qualname__
                for name, value in vars(cls).items()
                for base in bases
                if is_private(name) and name in vars(base) and name not in known
                if inspect.isroutine(value) or isinstance(value, property)
            }
    assert not missing
