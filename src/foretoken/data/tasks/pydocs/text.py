"""The text of docstrings: found in source files, masked, and rid of what was seen before."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foretoken.data.tasks.pydocs.sources import MASK, MASKED, PACKAGES

_ADDERS = frozenset({"_add_docstr", "add_docstr", "add_newdoc"})  # for functions written in C
_ALIASES = ("np", "sp", "pd", "pa", "pc", "pq")
_IMPORT = re.compile(r"^\s*(?:>>>|\.\.\.)?\s*(?:import\s+\S+|from\s+\S+\s+import\b).*$")
_RULER = re.compile(r"^\s*([-=~^*+.#])\1{2,}\s*$")
_DIRECTIVE = re.compile(r"^\s*\.\. (?:versionadded|versionchanged|deprecated|currentmodule|module|plot|_).*$")
_ROLE = re.compile(r":[a-z]+(?::[a-z]+)?:`~?([^`<]*?)(?:\s*<[^`>]*>)?`")
_SHORT = 6  # words: headings such as "Parameters" may repeat
_LONGEST_PIECE = 1000  # words


@dataclass(frozen=True)
class Piece:
    """One definition's name and docstring, not yet masked, to be joined with its neighbours."""

    text: str
    words: int


def file_pieces(path: Path, seen: set[str]) -> list[Piece]:
    """Return the docstrings of a source file, in order, without the paragraphs in ``seen``; adds its own."""
    try:
        source = path.read_bytes()
        with warnings.catch_warnings():  # invalid escapes in other people's docstrings
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return []
    pieces = []
    for name, docstring in docstrings(tree):
        paragraphs = list(_new_paragraphs(docstring, seen))
        if paragraphs:
            pieces.append(_piece([name.replace("_", " ").strip(), *paragraphs]))
    return pieces


def _piece(paragraphs: list[str]) -> Piece:
    """Join paragraphs up to _LONGEST_PIECE words."""
    kept, words = list[str](), 0
    for paragraph in paragraphs:
        if words and words + len(paragraph.split()) > _LONGEST_PIECE:
            break
        kept.append(paragraph)
        words += len(paragraph.split())
    return Piece("\n".join(filter(None, kept)), words)


def docstrings(node: ast.AST, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, docstring) of a module, its classes, methods, functions and documented C functions."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            yield name, docstring
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    for child in getattr(node, "body", []):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from docstrings(child, child.name)
        elif isinstance(child, (ast.Expr, ast.Assign)) and isinstance(child.value, ast.Call):
            yield from _added(child.value)


def _added(call: ast.Call) -> Iterator[tuple[str, str]]:
    function = call.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if called not in _ADDERS:
        return
    for argument in reversed(call.args):
        if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute):
            argument = argument.func.value  # "...".format(...)
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and " " in argument.value.strip():
            yield "", argument.value
            return


def _new_paragraphs(docstring: str, seen: set[str]) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = [line for line in block.split("\n") if not _unwanted(line)]
        text = " ".join(_ROLE.sub(r"\1", " ".join(lines)).split())
        key = text.lower()
        if not text or key in seen:
            continue
        if len(text.split()) >= _SHORT:
            seen.add(key)
        yield text


def _unwanted(line: str) -> bool:
    return bool(_IMPORT.match(line) or _RULER.match(line) or _DIRECTIVE.match(line))


def mask(text: str) -> str:
    """Return the text with the names of packages, modules and topics replaced.

    >>> mask("Use scipy.stats.norm or np.linalg.norm(x) for statistics.")
    'Use [name].norm or [name].norm(x) for [name].'
    """
    text = _dotted().sub(rf"{MASK}\1", text)
    text = _words().sub(MASK, text)
    return re.sub(rf"{re.escape(MASK)}(?:[ ._-]{{0,2}}{re.escape(MASK)})+", MASK, text)


def mask_new(text: str, seen: set[str]) -> str:
    """Return the masked text without the paragraphs in ``seen``; adds its own."""
    kept = []
    for paragraph in mask(text).split("\n"):
        if paragraph not in seen:
            kept.append(paragraph)
        if len(paragraph.split()) >= _SHORT:
            seen.add(paragraph)
    return "\n".join(kept)


@cache
def _dotted() -> re.Pattern[str]:
    """Match ``package.module.name`` from the package up to the last part, which is kept."""
    heads = "|".join(map(re.escape, sorted({*PACKAGES, *_ALIASES}, key=len, reverse=True)))
    return re.compile(rf"(?<![\w.])(?:{heads})(?:\.\w+)*(\.\w+)")


@cache
def _words() -> re.Pattern[str]:
    words = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in MASKED)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?:e?s)?(?![A-Za-z0-9])", re.IGNORECASE)
