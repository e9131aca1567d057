"""What `foretoken methods` prints, found out from the methods; `python docs/generate.py` writes it to a file.

Whether a method can be on a family is found out by trying, on models without weights, which takes seconds and all of
PyTorch; the command reads the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args, get_origin

if TYPE_CHECKING:
    from foretoken.files import JsonObject
    from foretoken.methods import Method

FILE = Path(__file__).with_name("method_list.json")
Option: TypeAlias = tuple[str, str, str]


def method_list() -> JsonObject:
    """Return the rows of the table of methods, the options of each, and why it cannot be on some families."""
    from foretoken.methods import METHODS
    from foretoken.options import types_of
    from foretoken.training.baseline.options import PAPER, SUMMARY, TF_IDF, TfidfOptions
    from foretoken.training.model.adapter import option_fields, option_types
    from foretoken.training.model.support import support

    rows = [(row.name, row.summary, rate_text(row), row.paper) for row in METHODS.values()]
    types = types_of(TfidfOptions)
    options = {
        name: _options((item, option_types(name)[item.name]) for item in option_fields(name)) for name in METHODS
    }
    return {
        "methods": [*rows, (TF_IDF, SUMMARY, "", PAPER)],
        "options": options | {TF_IDF: _options((item, types[item.name]) for item in fields(TfidfOptions))},
        "support": support(),
    }


def text() -> str:
    """Return the file as it has to be."""
    return json.dumps(method_list(), indent=1, ensure_ascii=False) + "\n"


def rate_text(row: Method) -> str:
    """Return the learning rate that `auto` stands for."""
    from foretoken.methods import HEAD_RATE, TAGGING_HEAD_RATE

    if row.learning_rate is not None:
        return f"{row.learning_rate:g}"
    return "of its members" if row.name == "stack" else f"{HEAD_RATE:g}, tagging {TAGGING_HEAD_RATE:g}"


def _options(items: Iterable[tuple[Field[object], object]]) -> list[Option]:
    return [(item.name, _default(item), _meaning(item, wanted)) for item, wanted in items]


def _meaning(item: Field[object], wanted: object) -> str:
    """Return an option's help, and the values it takes where there are only some."""
    choices = ", ".join(str(value) for value in get_args(wanted)) if get_origin(wanted) is Literal else ""
    text = _first_sentence(item.metadata.get("help", ""))
    return f"{text} [{choices}]" if choices else text


def _first_sentence(text: str) -> str:
    """Shorten the paragraphs of peft's own methods."""
    return re.split(r"(?<=[a-z)`'])\. ", " ".join(text.split()), maxsplit=1)[0]


def _default(item: Field[object]) -> str:
    if item.default is not MISSING:
        return str(item.default)
    return str(item.default_factory()) if item.default_factory is not MISSING else "required"
