"""Send a million short documents through `foretoken predict --ray` and kill workers: no row may be lost or doubled.

    python -m benchmarks.serving.million [--rows 1000000] [--kills 5] [--output benchmarks/results/serve-million]
    python -m benchmarks.serving.million --model minilm --rows 20000 --kills 0 --workers 1

Without `--model` it is a BERT of one small random layer: the time is that of reading, handing out, making the tokens
and writing. Rows name one of two adapters, which `foretoken train` makes first. A worker is killed with SIGKILL each
time that another share of the files is there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import transformers
from benchmarks.suite.machine import hardware, versions

from foretoken.files import write_json
from foretoken.lengthening import resolve_source

WORDS = ["meeting", "moved", "lunch", "winner", "invoice", "paid", "late", "parcel", "garden", "train"]
COMMAND = [sys.executable, "-m", "foretoken"]
GIVEN_UP = 3600


def small_model(folder: Path) -> Path:
    """Write a BERT of one small random layer with MiniLM's tokenizer."""
    source = resolve_source("minilm")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
    return folder


def trained(folder: Path, model: str | Path) -> Path:
    """Train two adapters for a step and return the folder of both."""
    rows = [f'"{" ".join(random.choices(WORDS, k=6))}",{"ham" if n % 2 else "spam"}' for n in range(60)]
    (folder / "mail.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    flags = ["--model", str(model), "--data.path", str(folder / "mail.csv"), "--training.max_steps", "1"]
    for method in ("prefix-propagation", "decoupled-prefix"):
        own = ["--method", method, "--name", method, "--output", str(folder / "runs")]
        subprocess.run([*COMMAND, "train", *flags, *own], check=True, cwd=folder, stderr=subprocess.DEVNULL)
    return folder / "runs"


def written(file: Path, count: int) -> Path:
    """Write the documents: two to eight words each."""
    chosen = random.Random(0)
    texts = [" ".join(chosen.choices(WORDS, k=chosen.randrange(2, 9))) for _ in range(count)]
    names = [("prefix-propagation", "decoupled-prefix")[row % 2] for row in range(count)]
    pq.write_table(pa.table({"id": np.arange(count), "text": texts, "name": names}), file, row_group_size=100_000)
    return file


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Return Ray's processes that compute documents."""
    found = []
    for child in process.children(recursive=True):
        try:
            if child.name().startswith("ray::") and "Map" in child.name():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def predicted(adapters: Path, source: Path, answers: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the command, kill workers on its way, and return what happened."""
    words = ["predict", str(adapters), "--ray", "--workers", str(options.workers), "--adapter-column", "name"]
    words += ["--input", str(source), "--output", str(answers), "--rows-per-block", str(options.rows_per_block)]
    blocks = -(-options.rows // options.rows_per_block)
    due = [round(blocks * (number + 1) / (options.kills + 1)) for number in range(options.kills)]
    chosen, killed = random.Random(0), []
    first, began = 0, time.perf_counter()
    since = began
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as command:
        while command.poll() is None:
            files = len(list(answers.glob("part-*.parquet"))) if answers.is_dir() else 0
            if files and not first:
                first, since = files, time.perf_counter()
            if due and files >= due[0]:
                found = workers_of(psutil.Process(command.pid))
                if found:
                    worker = chosen.choice(found)
                    killed.append({"name": worker.name(), "files": files})
                    os.kill(worker.pid, signal.SIGKILL)
                    due.pop(0)
            if time.perf_counter() - began > GIVEN_UP:
                command.kill()
            time.sleep(0.05)
        said = command.stdout.read() if command.stdout else ""
    ended = time.perf_counter()
    if command.returncode:
        raise SystemExit(f"the command ended with {command.returncode}:\n{said[-3000:]}")
    shown = {"seconds": round(ended - began, 1), "killed": killed}
    rate = (options.rows - first * options.rows_per_block) / (ended - since)
    return shown | {"rows_per_second_after_the_first_file": round(rate, 1)}


def checked(answers: Path, source: Path, count: int) -> dict[str, Any]:
    """Compare the answers with the documents: every row once, with its own id and adapter, and a label or an error."""
    found = pq.read_table(answers, columns=["row", "id", "adapter", "label", "error"])
    order = np.argsort(found["row"].to_numpy())
    given = pq.read_table(source, columns=["id", "name"])
    return {
        "rows": found.num_rows,
        "every_row_once": bool((found["row"].to_numpy()[order] == np.arange(count)).all()),
        "ids_are_theirs": bool((found["id"].to_numpy()[order] == given["id"].to_numpy()).all()),
        "adapters_are_theirs": found["adapter"].take(pa.array(order)).to_pylist() == given["name"].to_pylist(),
        "without_a_label": found["label"].null_count,
        "errors": dict(Counter(found["error"].drop_null().to_pylist()).most_common(5)),
    }


def main() -> None:
    """Predict, kill, compare and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rows-per-block", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--model", help="folder, hub name or minilm; a small random BERT without it")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "results" / "serve-million")
    options = parser.parse_args()
    random.seed(0)
    with TemporaryDirectory() as name:
        folder = Path(name)
        adapters = trained(folder, options.model or small_model(folder / "model"))
        source = written(folder / "in.parquet", options.rows)
        values = predicted(adapters, source, folder / "out", options)
        values |= checked(folder / "out", source, options.rows)
    given = {"workers": options.workers, "rows_per_block": options.rows_per_block, "model": options.model or "small"}
    values |= given | {"hardware": hardware(), "versions": versions()}
    write_json(options.output.with_suffix(".json"), values)
    print(json.dumps({key: value for key, value in values.items() if key not in ("hardware", "versions")}, indent=1))


if __name__ == "__main__":
    main()
