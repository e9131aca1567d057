"""What weights of 8 bits cost an exported classifier: both folders on the same labelled file.

    foretoken export runs/news --output whole
    foretoken export runs/news --int8 --output int8
    python -m benchmarks.export_int8 whole int8 test.csv

Prints accuracy and macro-F1 of each, how many answers differ, the differences of probabilities, sizes, and
medians of the seconds per document of both in turns. Needs onnxruntime, tokenizers and scikit-learn alone.
"""

import csv
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession, SessionOptions
from sklearn.metrics import accuracy_score, f1_score
from tokenizers import Tokenizer


class Exported:
    """An exported folder, ready to answer."""

    def __init__(self, folder):
        self.folder = Path(folder)
        options = SessionOptions()
        options.intra_op_num_threads = 1
        self.labels = json.loads((self.folder / "config.json").read_text())["labels"]
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.session = InferenceSession(self.folder / "model.onnx", options)
        self.seconds = []

    def probabilities(self, text):
        """Return the probabilities (C,) of one document."""
        found = self.tokenizer.encode(text)
        inputs = {"input_ids": np.array([found.ids]), "attention_mask": np.array([found.attention_mask])}
        start = time.perf_counter()
        answer = self.session.run(["probabilities"], inputs)[0][0]
        self.seconds.append(time.perf_counter() - start)
        return answer


def main(whole, small, file):
    with Path(file).open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    folders = {"fp32": Exported(whole), "int8": Exported(small)}
    found = {name: [] for name in folders}
    for number, row in enumerate(rows):
        for name in sorted(folders, reverse=bool(number % 2)):
            found[name].append(folders[name].probabilities(row["text"]))
    for name, answers in found.items():
        exported = folders[name]
        said = [exported.labels[row.argmax()] for row in answers]
        truth = [row["label"] for row in rows]
        size = (exported.folder / "model.onnx").stat().st_size / 1e6
        accuracy, f1 = accuracy_score(truth, said), f1_score(truth, said, average="macro")
        print(
            f"{name}: accuracy {accuracy:.4f}, macro-F1 {f1:.4f}, "
            f"{size:.1f} MB, median {1000 * statistics.median(exported.seconds):.1f} ms per document"
        )
    fp32, int8 = (np.array(found[name]) for name in ("fp32", "int8"))
    differing = int((fp32.argmax(axis=1) != int8.argmax(axis=1)).sum())
    apart = np.abs(fp32 - int8)
    print(f"{differing} of {len(rows)} answers differ; probabilities by {apart.mean():.4f}, at most {apart.max():.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
