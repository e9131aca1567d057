"""Write the parts of the documentation that the code knows: ``python docs/generate.py`` (``--check`` only looks).

A page marks such a part with ``<!-- generated: NAME -->`` and ``<!-- end -->``; what stands between is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import statistics
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))
from drawing import drawing

FOLDER = Path(__file__).parent
README = FOLDER.parent / "README.md"
RESULTS = FOLDER.parent / "benchmarks" / "results"
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


def recipe_keys() -> Iterator[str]:
    """Return every key of a recipe: type, default, help."""
    from foretoken.training.recipe.recipe import Recipe

    return table(("key", "type", "range", "default", "meaning"), _keys(Recipe))


def _keys(options: type[Any], prefix: str = "") -> Iterator[tuple[str, ...]]:
    from foretoken.options import describe, shown_fields

    hints = get_type_hints(options)
    for item in shown_fields(options):
        wanted, key = hints[item.name], prefix + item.name
        inner = [member for member in (wanted, *get_args(wanted)) if is_dataclass(member)]
        if inner:
            yield f"**`{key}`**", "a group of keys", "", _group_default(item), item.metadata["help"]
            yield from _keys(inner[0], f"{key}.")  # type: ignore[arg-type]
        else:
            yield f"`{key}`", describe(wanted), _range(item), shown_default(item), item.metadata["help"]


def _range(item: Field[Any]) -> str:
    """Return the limits of a number as an interval in words."""
    words = {"at_least": "from", "above": "above", "at_most": "up to", "below": "below"}
    return ", ".join(f"{word} {item.metadata[name]:,.15g}" for name, word in words.items() if name in item.metadata)


def _group_default(item: Field[Any]) -> str:
    if item.default is None:
        return "left out"
    return "required" if item.default_factory is MISSING else "the defaults below"


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
                f"[`{row.name}`]({row.name}.md)",
                row.summary,
                f"`{row.config.__name__}`" if row.config else "none",
                rate_text(row),
                row.paper,
            )
            for row in METHODS.values()
        ),
    )
    yield f"| [`{TF_IDF}`]({TF_IDF}.md) | {SUMMARY} | none | none | {PAPER} |"


def baseline() -> Iterator[str]:
    """Return the options of the baseline."""
    from foretoken.training.baseline.options import TfidfOptions

    return table(("option", "type", "range", "default", "meaning"), _keys(TfidfOptions))


def options(name: str) -> Iterator[str]:
    """Return the options of one method."""
    from foretoken import METHODS
    from foretoken.options import describe
    from foretoken.training.model.adapter import option_types

    known = option_types(name)
    items = [item for item in fields(METHODS[name].config) if item.name in known]  # type: ignore[arg-type]
    return table(
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
    yield f"Learning rate where a recipe names none: {said} ([how to choose one](../guide/learning-rate.md))."


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

    return table(
        (
            "task",
            "what it is",
            "problem",
            "labels",
            "train / validation / test",
            "metric",
            "source",
            "licence",
        ),
        (
            (
                f"`{task.name}`",
                task.summary,
                task.problem,
                str(len(task.labels) or ""),
                task.sizes,
                task.metric,
                task.source,
                task.licence,
            )
            for task in DATA_TASKS.values()
        ),
    )


def ablation(task: str, metric: str) -> Iterator[str]:
    """Return what `research/ablation.py` measured on one task: a row a variant, in the order of the runs."""
    runs = records_of("ablation")
    variants: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if run["task"] == task:
            variants.setdefault(run["variant"], []).append(run)
    rows = (
        (
            name,
            str(len(found)),
            *(spread([(run[part] or {}).get(metric) for run in found]) for part in ("validation", "test")),
        )
        for name, found in variants.items()
    )
    return table(("variant", "seeds", f"`{metric}`, validation", f"`{metric}`, test"), rows)


COMPARED = {"sst2": "roc_auc", "cola": "roc_auc", "mrpc": "roc_auc", "wnut17": "f1"}
ABLATION_HEADER = ("variant", *(f"{task}, `{metric}`" for task, metric in COMPARED.items()))


def seed_by_seed(own: dict[int, float], base: dict[int, float]) -> str:
    """Return the mean difference of runs of equal seed and how many of them gain, or nothing for fewer than three."""
    seeds = own.keys() & base.keys()
    if len(seeds) < 3:  # the tables of the tasks have the rest
        return ""
    pairs = [round(own[seed] - base[seed], 4) for seed in seeds]
    return f"{statistics.mean(pairs):+.3f} ({sum(pair > 0 for pair in pairs)} of {len(pairs)})"


def ablation_scores(part: str, precisions: Collection[str]) -> dict[tuple[str, str], dict[int, float]]:
    """Return the ablation's scores by variant and task, then by seed; of two precisions the one that was run first."""
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for run in records_of("ablation"):
        if run["task"] in COMPARED and run["precision"] in precisions:
            score = (run[part] or {}).get(COMPARED[run["task"]])
            scores.setdefault((run["variant"], run["task"]), {}).setdefault(run["seed"], score)
    return scores


def ablation_paired(part: str) -> Iterator[str]:
    """Return what one change makes of a method's default, task by task: the mean difference of runs of equal seed."""
    scores = ablation_scores(part, ("bf16",))

    def cell(variant: str, task: str) -> str:
        own = scores.get((variant, task), {})
        if variant.endswith(" by default"):
            return f"{statistics.mean(own.values()):.3f}" if len(own) >= 3 else ""
        return seed_by_seed(own, scores.get((variant.split(", ")[0], task), {}))

    changed = sorted({variant for variant, _ in scores if " by default" in variant})
    rows = [(variant, *(cell(variant, task) for task in COMPARED)) for variant in changed]
    return table(ABLATION_HEADER, (row for row in rows if any(row[1:])))


TRAINED_HOW = {
    "no warm-up": "no warm-up",
    "head first": "the head first",
    "batches a quarter as large, as many documents": "batches a quarter as large",
    "first layer at a tenth": "a tenth of the steps in layer 0",
    "network, rate 0.0003": "a network yields the prefix",
    "residual network, rate 0.003": "a residual network on the prefix",
}


def ablation_training(part: str) -> Iterator[str]:
    """Return the same for how a method is trained, where words are tagged beside a head at 0.01."""
    scores = ablation_scores(part, ("bf16", "fp32"))

    def named(method: str, task: str) -> str:
        if task != "wnut17":
            return f"{method} by default"
        return "lora, rate 0.003, head rate 0.01" if method == "lora" else f"{method} by default, head rate 0.01"

    def cell(method: str, change: str, task: str) -> str:
        start = named(method, task)
        return seed_by_seed(scores.get((f"{start}, {change}", task), {}), scores.get((start, task), {}))

    rows = (
        (f"{method}, {title}", *(cell(method, change, task) for task in COMPARED))
        for method in ("prefix-propagation", "decoupled-prefix", "lora")
        for change, title in TRAINED_HOW.items()
    )
    return table(ABLATION_HEADER, (row for row in rows if any(row[1:])))


def aot_grid() -> Iterator[str]:
    """Return what `python -m benchmarks aot` measured: a row a candidate, two columns a size."""
    from benchmarks.suite.tables import overhead

    results = json.loads((RESULTS / "bench-aot-grid.json").read_text(encoding="utf-8"))["results"]
    sizes = [f"{part['settings']['batch']} x {part['settings']['n']}" for part in results]
    first, last = results[0]["memory"], results[-1]["memory"]
    rows = (
        (
            name,
            *(f"{100 * overhead(part['timings']['forward'][name]):+.1f} %" for part in results),
            f"{first[name]['adapter'] / 1e6:.1f} MB",
            f"{max(0, last[name]['peak'] - last[name]['before']) / 1e6:.0f} MB",
        )
        for name in first
    )
    header = ("candidate", *(f"time, {size}" for size in sizes), "tensors", f"during a pass, {sizes[-1]}")
    return table(header, rows)


@functools.cache
def records_of(name: str) -> list[dict[str, Any]]:
    """Return the runs that a file of `research/records` holds; read once for all pages."""
    runs: list[dict[str, Any]] = json.loads((RESEARCH / "records" / f"{name}.json").read_text(encoding="utf-8"))["runs"]
    return runs


def searched_rate(recipe: dict[str, Any]) -> float:
    """Return the rate of what a run trains: that of the method, that of the head where it is trained alone."""
    training = recipe["training"]
    alone = recipe["method"]["name"] == "head-only"
    return (training.get("head_learning_rate") if alone else None) or training["learning_rate"]


def study(name: str, task: str) -> Iterator[str]:
    """Return a study's results on one task: the runs whose test was measured, a row a method, from their records."""
    from foretoken import METHODS
    from foretoken.training.baseline.options import TF_IDF

    known = [*METHODS, TF_IDF]
    tested = [run for run in records_of(name) if run["recipe"]["data"]["task"] == task and run["test"]]
    metric = next(run["best"]["metric"] for run in tested if run.get("best"))
    candidates: dict[tuple[str, object], list[dict[str, Any]]] = {}
    for run in tested:
        recipe = run["recipe"]
        rate = None if recipe["method"]["name"] == TF_IDF else searched_rate(recipe)
        candidates.setdefault((recipe["method"]["name"], rate), []).append(run)
    by_validation = sorted(candidates.items(), key=lambda item: mean(item[1], metric))
    groups = {method: runs for (method, _), runs in by_validation}  # of several rates, the best on validation
    shown = {f"{metric}, validation": ("validation", metric), f"{metric}, test": ("test", metric)}
    shown |= {f"{other}, test": ("test", other) for other in ("roc_auc", "accuracy", "ece") if other != metric}
    shown |= {"ece, temperature": ("scaled", "ece")}
    scores = {
        method: [[measured(run, *place) for run in runs] for place in shown.values()] for method, runs in groups.items()
    }
    kept = [index for index in range(len(shown)) if any(None not in found[index] for found in scores.values())]
    header = ("method", "rate", "trained", "runs", *(list(shown)[index] for index in kept))
    rows = (
        (
            f"`{method}`",
            "" if method == TF_IDF else f"{searched_rate(runs[0]['recipe']):g}",
            "" if method == TF_IDF else f"{runs[0]['parameters']['percent']:.2f} %",
            str(len(runs)),
            *(spread(scores[method][index]) for index in kept),
        )
        for method, runs in sorted(groups.items(), key=lambda item: known.index(item[0]))
    )
    return table(header, rows)


STUDY = {
    "sst2": ("SST-2, ROC AUC", "roc_auc"),
    "mrpc": ("MRPC, accuracy and F1", "accuracy_f1"),
    "cola": ("CoLA, Matthews", "matthews"),
    "wnut17": ("WNUT-17, F1", "f1"),
    "20newsgroups": ("20 Newsgroups, accuracy", "accuracy"),
    "hyperpartisan": ("Hyperpartisan, F1", "f1"),
    "rte": ("RTE, accuracy", "accuracy"),
}


def study_scores() -> dict[tuple[str, str], dict[tuple[int, int], float]]:
    """Return the study's test scores, times 100, by method and task, then by seed and fold."""
    scores: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for run in records_of("study"):
        method, data = run["recipe"]["method"]["name"], run["recipe"]["data"]
        if run["test"]:
            found = scores.setdefault((method, data["task"]), {})
            found[run["seed"], data.get("fold") or 0] = 100 * run["test"][STUDY[data["task"]][1]]
    return scores


def study_of_all_tasks() -> Iterator[str]:
    """Return the study's mean test scores, times 100, of the methods that every task has."""
    tasks = [task for task in STUDY if task != "rte"]  # where all are at chance
    scores = study_scores()
    rows = ("lora", "decoupled-prefix", "prefix-propagation", "prefix-tuning", "head-only", "tf-idf")
    found = ([scores.get((method, task)) for task in tasks] for method in rows)
    cells = ([f"{statistics.mean(values.values()):.1f}" if values else "" for values in row] for row in found)
    header = ("", *(STUDY[task][0] for task in tasks))
    return table(header, ((f"`{method}`", *row) for method, row in zip(rows, cells, strict=True)))


def study_differences(*pairs: str) -> Iterator[str]:
    """Return how far two methods are apart on test, a row a task; a column a pair, such as `lora:bitfit`."""
    from scipy.stats import ttest_ind, ttest_rel

    def cell(one: dict[tuple[int, int], float], other: dict[tuple[int, int], float]) -> str:
        left, right = ([found[run] for run in sorted(found)] for found in (one, other))
        is_paired = any(fold for _, fold in one)
        test = ttest_rel(left, right) if is_paired else ttest_ind(left, right, equal_var=False)
        low, high = test.confidence_interval(0.95)
        gain = statistics.mean(left) - statistics.mean(right)
        return f"{gain:+.1f} ({low:+.1f} to {high:+.1f}), p = {test.pvalue:.2g}"

    scores = study_scores()
    names = [pair.split(":") for pair in pairs]
    rows = (
        (title, *(cell(scores[one, task], scores[other, task]) for one, other in names))
        for task, (title, _) in STUDY.items()
    )
    return table(("", *(f"`{one}` - `{other}`" for one, other in names)), rows)


def study_rates() -> Iterator[str]:
    """Return the rate that each search of the study chose, and what it gains over the method's own on validation."""
    from foretoken import METHODS, make_config
    from foretoken.methods.rates import default_rates

    candidates = records_of("study-search")
    searched = {(run["recipe"]["method"]["name"], run["recipe"]["data"]["task"]) for run in candidates}
    tried: dict[tuple[str, str], dict[float, float]] = {}
    chosen: dict[tuple[str, str], float] = {}
    for run in (*records_of("study"), *candidates):
        recipe = run["recipe"]
        key = recipe["method"]["name"], recipe["data"]["task"]
        if key in searched and run["seed"] == 0 and not recipe["data"].get("fold"):
            rate = searched_rate(recipe)
            tried.setdefault(key, {})[rate] = run["validation"][STUDY[key[1]][1]]
            if run["test"]:
                chosen[key] = rate

    configs = {method: METHODS[method].config and make_config(method) for method, _ in searched if method in METHODS}

    def cell(method: str, task: str) -> str:
        if (key := (method, task)) not in searched:
            return ""
        own, _ = default_rates(configs[method], tagging=task == "wnut17")
        gain = 100 * (tried[key][chosen[key]] - tried[key][own])
        return "own" if chosen[key] == own else f"{chosen[key]:g} ({gain:+.1f})"

    tasks = [task for task in STUDY if any(task == other for _, other in searched)]
    rows = (
        (f"`{method}`", f"{default_rates(configs[method])[0]:g}", *(cell(method, task) for task in tasks))
        for method in METHODS
        if any(method == other for other, _ in searched)
    )
    return table(("method", "own", *(STUDY[task][0] for task in tasks)), rows)


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


def mean(runs: Sequence[dict[str, Any]], metric: str) -> float:
    """Return the mean of a metric on validation."""
    return statistics.mean(run["validation"][metric] for run in runs)


def measured(run: dict[str, Any], split: str, metric: str) -> float | None:
    """Return a run's metric on a split; ``scaled``: on test after temperature scaling."""
    found = (run["scaling"] or {}).get("test") if split == "scaled" else run[split]
    return (found or {}).get(metric)


def spread(values: Sequence[float | None]) -> str:
    """Return the mean, with the standard deviation where there are several."""
    found = [value for value in values if value is not None]
    if not found:
        return ""
    return f"{statistics.mean(found):.3f}" + (f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else "")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a Markdown table."""
    for cells in (header, ["---"] * len(header), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


PARTS: dict[str, Callable[..., Iterator[str]]] = {
    "recipe-keys": recipe_keys,
    "help": command_help,
    "methods": methods,
    "options": options,
    "baseline": baseline,
    "cost": cost,
    "rate": rate,
    "families": families,
    "support": support,
    "family-tasks": family_tasks,
    "metrics": metrics,
    "tasks": data_tasks,
    "study": study,
    "study-of-all-tasks": study_of_all_tasks,
    "study-differences": study_differences,
    "study-rates": study_rates,
    "ablation": ablation,
    "ablation-paired": ablation_paired,
    "ablation-training": ablation_training,
    "aot-grid": aot_grid,
    "patched": patched,
}


def stale() -> Iterator[tuple[Path, str]]:
    """Yield the pages that are not as the code has them now, and how they should be."""
    for page in (README, *sorted(FOLDER.rglob("*.md")), *sorted(RESEARCH.glob("*.md"))):
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
