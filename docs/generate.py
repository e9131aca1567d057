"""Write the parts of the documentation that the code knows: ``python docs/generate.py`` (``--check`` only looks).

A page marks such a part with ``<!-- generated: NAME -->`` and ``<!-- end -->``; what stands between is replaced.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))
from drawing import drawing
from research.tables import PARTS as RECORDED
from research.tables import table

FOLDER = Path(__file__).parent
README = FOLDER.parent / "README.md"
RESEARCH = FOLDER.parent / "research"
MARKED = re.compile(r"(<!-- generated: (?P<name>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
HELP_WIDTH = "88"
HEADS = {
    "sequence classification": "SequenceClassification",
    "token classification": "TokenClassification",
    "question answering": "QuestionAnswering",
    "multiple choice": "MultipleChoice",
}


def generated(text: str) -> str:
    """Return a page with its marked parts written anew."""
    return MARKED.sub(lambda match: f"{match[1]}\n{part(match['name'])}\n\n{match[3]}", text)


def part(name: str) -> str:
    """Return the marked part of this name, e.g. ``options prefix-tuning``."""
    kind, *arguments = name.split()
    return "\n".join(PARTS[kind](*arguments))


SAID = ("meaning", "takes", "default")  # of a key


def recipe_keys() -> Iterator[str]:
    """Return every key of a recipe, a table for each group of keys."""
    from foretoken.training.recipe.recipe import Recipe

    columns = ("key", *SAID)
    yield from table(columns, _keys(Recipe))
    for name, group in _groups(Recipe):
        yield from ("", f"## {name}", "")
        yield from table(columns, _keys(group, f"{name}."))


def _inner(wanted: Any) -> type[Any] | None:
    """Return the group of keys that a field holds."""
    return next((member for member in (wanted, *get_args(wanted)) if is_dataclass(member)), None)  # type: ignore[return-value]


def _groups(options: type[Any], prefix: str = "") -> Iterator[tuple[str, type[Any]]]:
    from foretoken.options import shown_fields

    hints = get_type_hints(options)
    for item in shown_fields(options):
        if group := _inner(hints[item.name]):
            yield prefix + item.name, group
            yield from _groups(group, f"{prefix}{item.name}.")


def _keys(options: type[Any], prefix: str = "") -> Iterator[tuple[str, ...]]:
    from foretoken.options import describe, shown_fields

    hints = get_type_hints(options)
    for item in shown_fields(options):
        wanted, key, says = hints[item.name], prefix + item.name, item.metadata["help"]
        if _inner(wanted):
            yield f"**`{key}`**", says, f"[keys](#{key.replace('.', '')})", _group_default(item)
        else:
            yield f"`{key}`", says, " ".join((describe(wanted), _range(item))).strip(), shown_default(item)


def _range(item: Field[Any]) -> str:
    """Return the limits of a number as an interval in words."""
    words = {"at_least": "from", "above": "above", "at_most": "up to", "below": "below"}
    return ", ".join(f"{word} {item.metadata[name]:,.15g}" for name, word in words.items() if name in item.metadata)


def _group_default(item: Field[Any]) -> str:
    if item.default is None:
        return "left out"
    return shown_default(item) if item.default_factory is MISSING else "the defaults below"


def shown_default(item: Field[Any]) -> str:
    """Return a field's default as a recipe would spell it."""
    if item.default is MISSING:
        return "required" if item.default_factory is MISSING else f"`{item.default_factory()}`"
    value = item.default
    if value is None or isinstance(value, bool):
        return "`null`" if value is None else f"`{str(value).lower()}`"
    return f"`[{', '.join(value)}]`" if isinstance(value, tuple) else f"`{value}`"


def command_help(verb: str) -> Iterator[str]:
    """Return what ``foretoken VERB --help`` prints; the list of recipe keys has a page of its own."""
    from foretoken_cli import main

    printed = io.StringIO()
    with patch.dict(os.environ, COLUMNS=HELP_WIDTH), contextlib.redirect_stdout(printed):
        main(["--help"] if verb == "foretoken" else [verb, "--help"])
    text, keys, _ = printed.getvalue().partition("keys of a recipe:\n")
    yield from ("```text", text.rstrip() + ("\n\n" + keys + "  ..." if keys else ""), "```")


def methods() -> Iterator[str]:
    """Return the table of methods, with the baseline."""
    from method_list import rate_text

    from foretoken import METHODS
    from foretoken.training.baseline.options import PAPER, SUMMARY, TF_IDF

    yield from table(
        ("method", "what it trains", "config", "learning rate", "paper"),
        (
            (
                f"[`{row.name}`](../methods/{row.name}.md)",
                row.summary,
                f"`{row.config.__name__}`" if row.config else "none",
                rate_text(row),
                row.paper,
            )
            for row in METHODS.values()
        ),
    )
    yield f"| [`{TF_IDF}`](../methods/{TF_IDF}.md) | {SUMMARY} | none | none | {PAPER} |"


def counts() -> Iterator[str]:
    """Say how much of everything there is."""
    from foretoken import METHODS
    from foretoken.backbones import BACKBONES
    from foretoken.data.problems import PROBLEMS
    from foretoken.data.tasks.table import TASKS as DATA_TASKS
    from foretoken_cli import VERBS

    yield f"{len(METHODS)} methods, {len(BACKBONES)} families of models, {len(PROBLEMS)} kinds of problems,"
    yield f"{len(DATA_TASKS)} built-in tasks, {len(VERBS)} verbs of the command."


def verbs() -> Iterator[str]:
    """Return the verbs of the command."""
    from foretoken_cli import VERBS

    return table(("verb", "what it does"), ((f"[`{verb}`](#{verb})", said) for verb, said in VERBS.items()))


def problems() -> Iterator[str]:
    """Return the kinds of problems: what a row is, what is predicted for it, and the metric that chooses."""
    from foretoken.data.options import DataOptions
    from foretoken.data.problems import PROBLEMS
    from foretoken.training.recipe.resolve import default_metric

    metrics = {name: default_metric(DataOptions(path="mail.csv", problem=name)) for name in PROBLEMS}
    rows = (
        (f"`{name}`", facts.rows.value, facts.answer.value, f"`{metrics[name]}`") for name, facts in PROBLEMS.items()
    )
    return table(("`data.problem`", "a row of data", "what is predicted", "`training.metric`"), rows)


def extras() -> Iterator[str]:
    """Return the extras of the package, with what each brings."""
    from foretoken.extras import EXTRAS

    found = {name: ", ".join(f"`{module}`" for module in modules) for name, modules in EXTRAS.items()}
    found["demo"] = "those of `train`, and the weights of `minilm`"
    return table(("extra", "brings"), ((f"`{name}`", brings) for name, brings in found.items()))


def python_names() -> Iterator[str]:
    """Return what mkdocstrings is to show: every public name, at the place where it is written."""
    import foretoken

    for name in sorted(foretoken.__all__, key=str.lower):
        place = foretoken._PUBLIC[name]
        if place == "peft":  # LoraConfig is peft's own
            continue
        yield f"::: {place}.{name}"
        if name == "AdapterBank":  # the one class that is more than a config
            yield from ("    options:", "      members: [add, remove, info, hidden_states, __call__]")
        yield ""


def baseline() -> Iterator[str]:
    """Return the options of the baseline."""
    from foretoken.training.baseline.options import TfidfOptions

    return table(("option", *SAID), _keys(TfidfOptions))


def walk(name: str) -> Iterator[str]:
    """Return the files that a walk through the code enters, in turn, with what each says of itself."""
    from support.walk import WALKS, lines_of, says

    files = WALKS[name]()
    yield f"{len(files)} files, {lines_of(files):,} lines of code:"
    yield ""
    for number, (file, found) in enumerate(files.items(), start=1):
        functions = f" ({', '.join(f'`{function}`' for function in found)})" if isinstance(found, list) else ""
        yield f"{number}. `{file}`: {says(file)}{functions}"


def reference(*names: str) -> Iterator[str]:
    """Return functions of ``methods/reference.py`` as they are written."""
    from foretoken.methods import reference as equations

    yield from ("<!-- fmt: off -->", "", "```py")
    yield "\n\n".join(inspect.getsource(getattr(equations, name)) for name in names).rstrip()
    yield from ("```", "", "<!-- fmt: on -->")


def options(name: str) -> Iterator[str]:
    """Return the options that are a method's own."""
    from foretoken import METHODS

    shared = _shared_options()
    known = set().union(*shared.values())
    yield from _options(name, lambda item: item.name not in known)
    has = {one.name for one in fields(METHODS[name].config)}  # type: ignore[arg-type]
    links = [f"[{title}](../reference/methods.md#{place})" for (title, place), names in shared.items() if names <= has]
    yield ""
    yield f"It also has {' and '.join(links)}."


def shared_options(kind: str) -> Iterator[str]:
    """Return the options that every method has, or every prefix."""
    names = next(names for (_, place), names in _shared_options().items() if place.endswith(kind))
    return _options("prefix-tuning", lambda item: item.name in names)


def _shared_options() -> dict[tuple[str, str], set[str]]:
    from foretoken.methods.base import ForetokenConfig
    from foretoken.methods.prefixes.prefix import PrefixConfig

    all_methods = {item.name for item in fields(ForetokenConfig)}
    prefixes = {item.name for item in fields(PrefixConfig)} - all_methods
    # a method may have another default for these: they stay in its own table
    varying = {"num_virtual_tokens", "init_std"}
    return {
        ("the options of every method", "options-of-every-method"): all_methods,
        ("those of every prefix", "options-of-every-prefix"): prefixes - varying,
    }


def _options(name: str, wanted: Callable[[Field[Any]], bool]) -> Iterator[str]:
    from foretoken import METHODS
    from foretoken.options import describe
    from foretoken.training.model.adapter import option_types

    known = option_types(name)
    items = [item for item in fields(METHODS[name].config) if item.name in known and wanted(item)]  # type: ignore[arg-type]
    if not items:
        yield "None of its own."
        return
    yield from table(
        ("option", "type", "default", "meaning"),
        ((f"`{item.name}`", _type(describe, known[item.name]), shown_default(item), _help(item)) for item in items),
    )


def _type(describe: Callable[[Any], str], wanted: Any) -> str:
    return "a list of configs" if get_args(wanted) == (Any,) else describe(wanted)


def _help(item: Field[Any]) -> str:
    return " ".join(item.metadata.get("help", "").split())


def rate(name: str) -> Iterator[str]:
    """Say the learning rate of one method."""
    from method_list import rate_text

    from foretoken import METHODS

    said = "the smallest of its members'" if name == "stack" else rate_text(METHODS[name])
    yield f"Learning rate where a recipe names none: {said}."


def cost(name: str, *changes: str) -> Iterator[str]:
    """Count the parameters of a method on a model of the size of BERT base; no weights are made."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from foretoken.training.model.adapter import attach
    from foretoken.training.model.load import count_parameters

    with torch.device("meta"):
        model = attach(BertForSequenceClassification(BertConfig(num_labels=2)), _method(name, changes))
    count = count_parameters(model)
    body = count.total - count.head - (0 if name == "full" else count.adapter)
    given = f" with {', '.join(changes)}" if changes else ""
    yield f"Counted on BERT base (12 layers, width 768, 2 labels){given}:"
    share = f"{100 * count.adapter / body:.2f} % of the body"
    yield f"{count.adapter:,} parameters in the method ({share}), {count.head:,} in the head."


def _method(name: str, changes: Sequence[str]) -> dict[str, Any]:
    values = (change.split("=") for change in changes)
    return {"name": name} | {key: int(value) if value.isdigit() else value for key, value in values}


def families() -> Iterator[str]:
    """Say which modules of which family are trained as the head, and what LoRA changes by default."""
    from foretoken.backbones import BACKBONES

    header = ("`model_type`", *list(HEADS), "query and value projections")
    rows = (
        (f"`{kind}`", *(_names(_head(kind, task)) for task in HEADS.values()), _names(backbone.projections))
        for kind, backbone in BACKBONES.items()
    )
    return table(header, rows)


def _names(names: Iterable[str] | None) -> str:
    return "" if names is None else ", ".join(f"`{name}`" for name in names) or "none"


def _head(kind: str, task: str) -> list[str] | None:
    import torch
    import transformers
    from method_list import small_config

    from foretoken.backbones import BACKBONES

    auto, config = getattr(transformers, f"AutoModelFor{task}"), small_config(kind)
    if type(config) not in auto._model_mapping:
        return None
    with torch.device("meta"):
        model = auto.from_config(config)
    return BACKBONES[kind].head_names(model, model.base_model)


def support() -> Iterator[str]:
    """Return the table of methods by families, found out by trying."""
    from method_list import support as cells

    found = cells()
    names = list(next(iter(found.values())))
    why = list(dict.fromkeys(general(reason) for row in found.values() for reason in row.values() if reason))
    header = ("`model_type`", *(f"[{name}](../methods/{name}.md)" for name in found))
    rows = (
        (f"`{kind}`", *(f"no [^{why.index(general(row[kind])) + 1}]" if row[kind] else "yes" for row in found.values()))
        for kind in names
    )
    yield from table(header, rows)
    yield ""
    yield from (f"[^{number}]: {reason}" for number, reason in enumerate(why, start=1))


def general(reason: str) -> str:
    """Return a refusal without the family's name, so that it is said once."""
    return re.sub(r"this \S+ model", "the model", reason)


def family_tasks() -> Iterator[str]:
    """Return the tasks of each family."""
    from method_list import TASKS, tasks

    from foretoken.backbones import BACKBONES

    offered = {kind: set(tasks(kind)) for kind in BACKBONES}
    rows = ((f"`{kind}`", *("yes" if task in offered[kind] else "" for task in TASKS)) for kind in BACKBONES)
    return table(("`model_type`", *TASKS), rows)


def metrics() -> Iterator[str]:
    """Return all metrics: which way is better, and the problems that have them."""
    from foretoken.metrics import METRICS, PROBLEMS, metric_names

    binary = set(metric_names(2)) - set(metric_names(3))

    def owners(name: str, problems: tuple[str, ...]) -> str:
        if problems == tuple(PROBLEMS):
            return "all"
        two = " (two labels)" if name in binary else ""
        return ", ".join(p + two if p == "classification" else p for p in problems) or "some tasks of classification"

    return table(
        ("metric", "what it is", "better", "problems"),
        (
            (f"`{name}`", row.title, "higher" if row.greater_is_better else "lower", owners(name, row.problems))
            for name, row in METRICS.items()
        ),
    )


def data_tasks() -> Iterator[str]:
    """Return the built-in tasks."""
    from foretoken.data.tasks.table import TASKS as DATA_TASKS

    tasks = DATA_TASKS.values()
    yield from table(
        ("task", "what it is", "problem", "labels", "train / validation / test", "metric"),
        (
            (f"`{task.name}`", task.summary, task.problem, str(len(task.labels) or ""), task.sizes, task.metric)
            for task in tasks
        ),
    )
    yield from ("", "## Sources and licences", "")
    yield from table(("task", "source", "licence"), ((f"`{task.name}`", task.source, task.licence) for task in tasks))


def patched() -> Iterator[str]:
    """Return what foretoken replaces or reads of other libraries, by library."""
    from support.patched import PATCHED

    for library in dict.fromkeys(row.library for row in PATCHED):
        rows = [row for row in PATCHED if row.library == library]
        yield from (f"## {library}", "")
        yield from table(
            ("what", "how", "why", "undone"),
            (
                (f"`{row.path}`" + (f" since {row.since}" if row.since else ""), row.how, row.why, row.undone)
                for row in rows
            ),
        )
        yield ""


PARTS: dict[str, Callable[..., Iterator[str]]] = {
    **RECORDED,
    "counts": counts,
    "verbs": verbs,
    "problems": problems,
    "extras": extras,
    "python-names": python_names,
    "shared-options": shared_options,
    "recipe-keys": recipe_keys,
    "help": command_help,
    "methods": methods,
    "reference": reference,
    "walk": walk,
    "options": options,
    "baseline": baseline,
    "cost": cost,
    "rate": rate,
    "families": families,
    "support": support,
    "family-tasks": family_tasks,
    "metrics": metrics,
    "tasks": data_tasks,
    "patched": patched,
}


def stale() -> Iterator[tuple[Path, str]]:
    """Yield the pages that are not as the code has them now, and how they should be."""
    for page in (README, *sorted(FOLDER.rglob("*.md")), *sorted(RESEARCH.rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if (fresh := generated(text)) != text:
            yield page, fresh
    picture = FOLDER / "architecture.svg"
    if picture.exists() and picture.read_text(encoding="utf-8") != (fresh := drawing()):
        yield picture, fresh
    from method_list import FILE, text

    if FILE.read_text(encoding="utf-8") != (fresh := text()):
        yield FILE, fresh


def main(arguments: Sequence[str]) -> int:
    """Write the stale pages, or only name them."""
    found = list(stale())
    for page, text in found:
        print(page)
        if "--check" not in arguments:
            page.write_text(text, encoding="utf-8")
    return int(bool(found) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
