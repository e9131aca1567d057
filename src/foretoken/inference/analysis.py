"""What a trained adapter does in the attention of its model, measured on documents: `analysis.json` of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from foretoken.data.load import load_data, load_inputs
from foretoken.data.options import DataOptions
from foretoken.errors import AdapterError
from foretoken.files import JsonObject, check_writable, write_json
from foretoken.inference.observe import SCORE_EDGES, Observed, Selected, Watch, observing
from foretoken.inference.predictor import Predictor, load_for_inference
from foretoken.training.problems.base import Inputs
from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.run.folder import RECORD
from foretoken.training.run.record import read_record
from foretoken.training.tokens.encode import describe
from foretoken.training.trainer.progress import progress_bar

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)
FILE = "analysis.json"
STACKS = ("encoder", "decoder")


def analyse_run(
    folder: Path, *, documents: int = 32, file: str | None = None, text_column: str | None = None
) -> JsonObject:
    """Measure the attention of a run's adapter, and write it to `analysis.json` in the run's folder.

    Args:
        folder: the run.
        documents: how many documents at most; of more, a selection that is spread evenly.
        file: data to measure on; default: the run's own validation split.
        text_column: column of the text in ``file``; default: as in training.

    Raises:
        AdapterError: it is no run, has saved no adapter, or its method has no prefix in the attention.
        DataError: the documents are not usable.
    """
    record = _record(folder)
    check_writable(folder)
    predictor = load_for_inference(folder)
    rows = own_rows(record) if file is None else rows_of(file, predictor, text_column)
    source = "validation" if file is None else Path(file).name
    rows = rows.select(spread(len(rows), documents))
    columns, truncation = predictor.problem.encode(rows, predictor.settings)
    log.info("%s: %s", source, describe(truncation, predictor.max_length))
    collate = predictor.problem.collator(predictor.tokenizer, predictor.model)
    batches = [collate([dict(zip(columns, row, strict=True))]) for row in zip(*columns.values(), strict=True)]
    with _named(record):
        measured = analyse(predictor.model, batches, forward=predictor.problem.forward)
    values = {"method": _method(record), "source": source, **measured}
    write_json(folder / FILE, values)
    return values


def analyse(
    model: nn.Module, documents: Sequence[Inputs], *, forward: Callable[[nn.Module, Inputs], object] | None = None
) -> JsonObject:
    """Return what the prefix gets of every attention, as the mean over all tokens of the documents.

    ``attention_mass[a][h]`` is the mean, over the text's queries i of attention a, of ``sum_x p_ix``: the softmax
    weight that head h gives to the prefix, where rows in front of the text count as the columns that they are for its
    queries. For selective prefix tuning, ``selective`` holds the mean of its mask ``m(s)`` per attention and head, and
    how its scores ``s`` are distributed: how many of all lie between two of ``score_edges``.

    Args:
        model: with an adapter; in evaluation mode.
        documents: the model's inputs for one document each, ``attention_mask`` (..., N) among them.
        forward: runs the model on inputs; default: calls it.

    Raises:
        AdapterError: the adapter puts nothing into the attention.
    """
    device = next(model.parameters()).device
    tokens = 0
    with observing(model) as watch, torch.inference_mode(), progress_bar("analysing") as bar:
        task = bar.add_task("", total=len(documents), note="")
        for document in documents:
            inputs = {name: value.to(device) for name, value in document.items()}
            watch.text = inputs["attention_mask"].flatten(0, -2).bool()
            tokens += int(watch.text.sum())
            model(**inputs) if forward is None else forward(model, inputs)
            _refuse_nothing(watch)
            bar.advance(task)
    seen = list(watch.seen.values())
    measured = {
        "documents": len(documents),
        "tokens": tokens,
        "attentions": names_of(seen),
        "attention_mass": [_rounded(one.mass, one.queries) for one in seen],
    }
    selected = [one.selected for one in seen if one.selected is not None]
    return measured | ({"selective": _selective(selected)} if selected else {})


def names_of(seen: Sequence[Observed]) -> list[str]:
    """Return what the attentions are called: `layer 3`, or `decoder 3 to encoder` where there are two stacks."""
    stacks = list(dict.fromkeys(one.stack for one in seen))
    if len(stacks) == 1:
        return [f"layer {one.layer}" for one in seen]
    return [f"{STACKS[stacks.index(one.stack)]} {one.layer}{' to encoder' if one.is_cross else ''}" for one in seen]


def own_rows(record: JsonObject) -> Dataset:
    """Return the validation split that a run was trained with."""
    return load_data(build_recipe(record["recipe"]).data).splits["validation"]


def rows_of(file: str, predictor: Predictor, text_column: str | None) -> Dataset:
    """Return the rows of a file or folder, with the columns that the run's problem has."""
    columns: JsonObject = dict(predictor.columns) | ({"text_column": text_column} if text_column else {})
    return load_inputs(file, DataOptions(path=file, **columns), predictor.problem.name)


def spread(total: int, count: int) -> list[int]:
    """Return ``count`` of ``total`` positions at equal distances, or all of them where there are no more.

    >>> spread(5, 2)
    [0, 2]
    """
    count = min(count, total)
    return [index * total // count for index in range(count)]


def _record(folder: Path) -> JsonObject:
    record = read_record(folder)
    if record is None or not record.get("recipe"):
        raise AdapterError(
            f"{folder}: no readable {RECORD} with a recipe; give the folder of a run of `foretoken train`"
        )
    return record


def _method(record: JsonObject) -> str:
    return str(record["recipe"].get("method", {}).get("name", "unknown"))


@contextmanager
def _named(record: JsonObject) -> Iterator[None]:
    """Say of which method an error is."""
    try:
        yield
    except AdapterError as error:
        raise AdapterError(f"{record.get('name', 'the run')} ({_method(record)}): {error}") from error


def _refuse_nothing(watch: Watch) -> None:
    if not watch.seen:
        raise AdapterError(
            "the method puts no prefix and no columns into the attention, so there is no mass to measure; "
            "analyse a run of prefix-tuning, prefix-propagation, selective-prefix-tuning or another prefix"
        )


def _selective(selected: Sequence[Selected]) -> JsonObject:
    return {
        "alpha": selected[0].mask.alpha,
        "gates": [_rounded(one.gates, one.entries) for one in selected],
        "score_edges": list(SCORE_EDGES),
        "score_counts": torch.stack([torch.as_tensor(one.counts) for one in selected]).sum(dim=0).int().tolist(),
    }


def _rounded(total: Tensor | float, count: int) -> list[float]:
    """Return the means of the heads, to six significant digits."""
    return [float(f"{mean:.6g}") for mean in (torch.as_tensor(total) / max(1, count)).tolist()]
