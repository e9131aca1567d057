"""Predictions for parquet files by workers of a Ray cluster: every row once, even if workers are killed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from foretoken.errors import AdapterError, ConfigError, DataError, ForetokenError, one_line
from foretoken.files import JsonObject
from foretoken.inference.base_model import base_model_of
from foretoken.inference.shared_base import SharedBase
from foretoken.serving.folders import checked_folder
from foretoken.serving.ray.blocks import RowBlock, check_whole, cut_into_blocks, missing_blocks, parquet_files
from foretoken.serving.ray.cluster import cluster, whole_path
from foretoken.serving.ray.worker import ID, RayOptions, Worker
from foretoken.training.run.card import read_card
from foretoken.training.saved_folder import adapter_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """The rows in the output, those of this command with an error, and those of earlier commands."""

    rows: int
    errors: int
    kept: int


def predict(options: RayOptions) -> Done:
    """Predict the rows that the output lacks, then check that it is complete.

    Raises:
        DataError: the input cannot be used.
        AdapterError: the adapter cannot be loaded.
        BackboneError: its pretrained model cannot be loaded.
        SaveError: the output holds something else, or cannot be written.
        ConfigError: there is no cluster with so many CPUs.
    """
    import ray  # noqa: F401  (if it is missing, fail before anything is written)

    job, files = _job(options), parquet_files(options.input)
    blocks = cut_into_blocks(files, job.texts, rows=options.rows_per_block)
    job = _with_ids(job, files)
    if options.output.resolve() == options.input.resolve() or options.output.is_file():
        raise ConfigError(f"--output: {options.output} is the input or a file; name a folder of its own")
    left = missing_blocks(options.output, blocks, _plan(job, files), overwrite=options.overwrite)
    rows = sum(block.rows for block in blocks)
    log.info("%d of %d blocks are missing: %d of %d rows", len(left), len(blocks), sum(b.rows for b in left), rows)
    errors = 0
    if left:
        with cluster(options.workers, option="--workers"):
            for number, result in enumerate(_results(job, left), 1):
                if result["failure"]:
                    raise ForetokenError(str(result["failure"]))
                errors += int(result["errors"])
                log.info("block %d of %d is written", len(blocks) - len(left) + number, len(blocks))
    check_whole(options.output, blocks)
    return Done(rows, errors, rows - sum(block.rows for block in left))


def _results(job: RayOptions, blocks: Sequence[RowBlock]) -> Iterator[dict[str, Any]]:
    """Yield the workers' result for each block; Ray restarts killed workers and repeats their blocks."""
    import ray
    from ray.exceptions import RayError

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    items = ray.data.from_items([asdict(block) for block in blocks], override_num_blocks=len(blocks))
    pool = ray.data.ActorPoolStrategy(size=job.workers)
    results = items.map_batches(Worker, fn_constructor_args=(job,), batch_size=1, num_cpus=1, compute=pool)
    try:
        yield from results.iter_rows()
    except RayError as error:
        raise ForetokenError(
            f"the workers failed: {one_line(str(error))[-300:]}; the same command goes on where it stopped"
        ) from error


def _job(options: RayOptions) -> RayOptions:
    """Check the adapter's folder and fill in what depends on it: the model, the columns and the precision."""
    adapter = options.adapter.resolve()
    columns: Mapping[str, Any] = {}
    if options.adapter_column is None:
        folder = checked_folder(options.adapter)
        source, columns = base_model_of(folder, options.base_model), read_card(folder).columns
        if "text" in columns and options.text_column is None:
            raise ConfigError(
                f"--ray reads the texts of one column, and {options.adapter} makes its texts of several ("
                f"{columns['text']!r}): give --text-column with one that holds whole texts, or predict without --ray"
            )
    else:
        source = options.base_model or _first_model(adapter)
    base = SharedBase(source, options.precision)
    return replace(
        options,
        model=whole_path(base.source),
        adapter=adapter,
        output=options.output.resolve(),
        text_column=options.text_column or columns.get("text_column", "text"),
        pair_column=options.pair_column or columns.get("text_pair_column"),
        precision=base.precision,
    )


def _first_model(folder: Path) -> str:
    """Return the pretrained model of the first adapter in a folder of adapters."""
    if not folder.is_dir():
        raise AdapterError(
            f"{folder} is not there; with --adapter-column expected a folder whose subfolders are adapters"
        )
    for subfolder in sorted(item for item in folder.iterdir() if item.is_dir()):
        try:
            return base_model_of(adapter_folder(subfolder))
        except AdapterError:
            continue
    raise AdapterError(f"{folder} has no adapter among its subfolders, which --adapter-column expects")


def _with_ids(job: RayOptions, files: Sequence[Path]) -> RayOptions:
    """Set whether the input has ids: all of its files must have them, or none."""
    import pyarrow.parquet as pq

    has = [ID in pq.read_schema(file).names for file in files]
    if len(set(has)) > 1:
        raise DataError(
            f"{files[has.index(False)]} has no column 'id', other files have one; give it to all or to none"
        )
    return replace(job, has_ids=has[0])


def _plan(job: RayOptions, files: Sequence[Path]) -> JsonObject:
    """Return the options and files that the results depend on."""
    about = {
        "adapter": str(job.adapter),
        "text_column": job.text_column,
        "text_pair_column": job.pair_column,
        "adapter_column": job.adapter_column,
        "rows_per_block": job.rows_per_block,
        "precision": job.precision,
    }
    about |= {} if job.base_model is None else {"base_model": job.model}
    return about | {"files": [[str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns] for file in files]}
