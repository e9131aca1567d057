"""Valid recipes and sweep files made wrong: strategies of hypothesis."""

import copy
from dataclasses import fields, is_dataclass
from typing import Literal, get_args, get_origin, get_type_hints

import yaml
from hypothesis import strategies as st

from foretoken.training.options import Recipe

TEXTS = ("", " ", "..", "../..", "a\nb", "\x00", "a\x1b[31mb", "\u202e", "\ud800", "x" * 400, "yes", "~", "%s", "{x}")
NUMBERS = (-1, 0, 1, 2, 10**9, 10**30, -(10**400), 0.5, 1.0, -0.0, 1e-9, 1e10, 1e308, float("nan"), float("inf"))
NAMES = ("lora", "stack", "full", "auto", "model", "mean", "temperature", "epoch", "cosine", "bf16", "text", "label")
DEEP = [[]]
for _ in range(60):
    DEEP = [DEEP]
OTHERS = (None, True, False, [], {}, [[]], {"": {}}, DEEP, ["x"] * 300, {f"k{n}": n for n in range(300)})
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(TEXTS + NUMBERS)
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
VALUES = st.sampled_from([*TEXTS, *NUMBERS, *NAMES, *OTHERS]) | JSON
SNIPPETS = (*":{}[],&*!|>'\"%@#?-`~\t\n\0\r\\", "\n  ", "&a [*a]", "!!python/object:os.system ", "<<: ", "010", "---\n")
FIXED = ("output", "name", "model", "lengthen.max_length")
FIXED += ("data.task", "data.path", "data.train", "data.validation", "data.test")


def known_options(options=Recipe, prefix=""):
    """Return every option of a recipe, by its dotted key, with a strategy of values that its type and range allow."""
    found = {}
    hints = get_type_hints(options)
    for item in fields(options):
        key, members = prefix + item.name, [hints[item.name], *get_args(hints[item.name])]
        inner = [member for member in members if is_dataclass(member)]
        if inner:
            found |= known_options(inner[0], f"{key}.")
        elif key not in FIXED and not key.startswith("generation."):
            found[key] = st.sampled_from([value for member in members for value in usable(member, item.metadata)])
    return found


def usable(hint, limits):
    """Return values of a type, both ends of its range among them."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    least, most = limits.get("at_least", limits.get("above", 0)), limits.get("at_most", limits.get("below", 1))
    ends = {int: (least, least + 1, 3, most), float: (least + 1e-6, 0.3, most * (1 - 1e-9)), bool: (True, False)}
    return ends.get(hint, ("text", "label", "nowhere") if hint is str else (None,))


OPTIONS = known_options()


def places(values, path=()):
    """Return the path of every value of nested groups and lists."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [place for key, value in items for place in [(*path, key), *places(value, (*path, key))]]


def at(values, path):
    for key in path:
        values = values[key]
    return values


def replaced(values, path, new):
    """Return nested values with one of them replaced; ``...`` removes it."""
    if not path:
        return new
    *above, key = path
    values = copy.deepcopy(values)
    holder = at(values, above)
    if new is ...:
        del holder[key]
    else:
        holder[key] = new
    return values


@st.composite
def changed(draw, values):
    """Draw nested values of which a few were deleted, renamed, added, exchanged or replaced."""
    values = copy.deepcopy(values)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        *above, key = draw(st.sampled_from(places(values)))
        group = at(values, above)
        kind = draw(st.sampled_from(["option"] * 6 + ["replace", "replace", "delete", "rename", "add", "exchange"]))
        if kind == "option":
            option = draw(st.sampled_from(list(OPTIONS)))
            values = with_option(values, option.split("."), draw(OPTIONS[option]))
        elif kind == "replace":
            group[key] = draw(VALUES)
        elif kind == "delete":
            del group[key]
        elif kind == "exchange":
            group[key] = copy.deepcopy(at(values, draw(st.sampled_from(places(values)))))
        elif isinstance(group, dict):
            name = draw(st.text(max_size=10) | st.sampled_from([f"{key}s", str(key)[1:], "name", *TEXTS]))
            group[name] = group.pop(key) if kind == "rename" else draw(VALUES)
        if not places(values):
            break
    return values


def with_option(values, path, value):
    """Return a recipe, or a sweep file with one, in which an option is set; a group in the way is left alone."""
    if isinstance(values.get("recipe"), dict):
        return values | {"recipe": with_option(values["recipe"], path, value)}
    first, *rest = path
    if rest:
        inner = values.get(first)
        return values | {first: with_option(inner, rest, value)} if isinstance(inner, dict) else values
    return values | {first: value}


@st.composite
def torn(draw, text):
    """Draw a text with a few characters or lines put in, taken out or given twice."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 12)))
        middle = draw(st.sampled_from(["", text[begin:end] * 2, *SNIPPETS]) | st.text(max_size=5))
        text = text[:begin] + middle + text[end:]
    return text


def dumped(values):
    """Return nested values as YAML; what YAML has no words for is written as Python does."""
    return yaml.dump(values, Dumper=_Dumper, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data):
        return True


def files(values):
    """Draw the bytes of a file: of changed values, or of a torn text."""
    texts = changed(values).map(dumped)
    text = st.one_of(texts, texts, torn(dumped(values)))
    return text.map(lambda text: text.encode(errors="surrogatepass"))


def overrides(values):
    """Draw the words of a few overrides."""
    keys = [".".join(map(str, path)) for path in places(values)]
    key = st.sampled_from([*keys, "method.prefix_init", "chunks.pool", "data.labels", "x.y", ""]) | st.text(max_size=8)
    words = st.tuples(key, st.sampled_from(SNIPPETS) | VALUES.map(lambda value: dumped(value).strip()))
    no_nul = words.map(lambda pair: f"--{pair[0]}={pair[1]}".replace("\0", ""))  # the system has none in words
    return st.one_of(st.just([]), st.lists(no_nul, max_size=2))
