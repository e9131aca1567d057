"""What lies beside the graph in an exported folder: tokenizer.json, config.json and README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from foretoken import __version__
from foretoken.data.problems import MULTI_LABEL, REGRESSION
from foretoken.errors import AdapterError
from foretoken.exporting.graph import IDS, MASK, TYPES, reads_types
from foretoken.exporting.words import OFFSET_CODE
from foretoken.files import JsonObject, write_text
from foretoken.inference.predictor import Predictor
from foretoken.options import to_dict
from foretoken.training.problems.regression import Regression

CONFIG, README, TOKENIZER = "config.json", "README.md", "tokenizer.json"
FORMAT = 1
_READ = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}  # of an encoding
_RUNS = {  # by target: what is imported, how the model is loaded, and run
    "onnx": (
        ["from onnxruntime import InferenceSession"],
        'InferenceSession("model.onnx")',
        "model.run(None, {name: np.array([getattr(x, key) for x in found]) for name, key in READ.items()})",
    ),
    "torch": (
        ["import torch"],
        'torch.export.load("model.pt2").module()',
        "[x.detach().numpy() for x in model(*(torch.tensor([getattr(x, k) for x in found]) for k in READ.values()))]",
    ),
}


def input_names(predictor: Predictor) -> list[str]:
    """Return what the graph is given."""
    return [IDS, MASK, *([TYPES] if reads_types(predictor) else [])]


def write_tokenizer(predictor: Predictor, path: Path) -> None:
    """Write a tokenizer that truncates or cuts into chunks, and pads, as the model was trained.

    Raises:
        AdapterError: it is none of the tokenizers library.
    """
    tokenizer, chunks = predictor.tokenizer, predictor.chunks
    fast = backend_of(tokenizer)
    if chunks is None:
        fast.enable_truncation(predictor.max_length, direction=tokenizer.truncation_side)
    else:
        fast.enable_truncation(predictor.max_length, stride=chunks.overlap)
    fast.enable_padding(pad_id=int(tokenizer.pad_token_id), pad_token=str(tokenizer.pad_token))  # on the right
    write_text(path, fast.to_str(pretty=True))


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return a copy of the tokenizer of the tokenizers library that transformers' wraps: it cuts and pads nothing."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(fast, Tokenizer):
        raise AdapterError(
            f"{type(tokenizer).__name__} is no tokenizer of the tokenizers library, and tokenizer.json cannot be "
            "written; use a model with a fast tokenizer"
        )
    copy = Tokenizer.from_str(fast.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def config_of(predictor: Predictor, **more: Any) -> JsonObject:
    """Return what config.json says: labels, recalibration, and how documents become tokens."""
    return {
        "format": FORMAT,
        "foretoken": __version__,
        "problem": predictor.problem.name,
        "max_length": predictor.max_length,
        "pad_token_id": int(predictor.tokenizer.pad_token_id),
        "pairs": predictor.problem.pairs,
        "chunks": None if predictor.chunks is None else to_dict(predictor.chunks),
        "inputs": input_names(predictor),
        **answers_of(predictor),
        **more,
    }


def answers_of(predictor: Predictor) -> JsonObject:
    """Return what differs between the adapters of one model: labels, recalibration, decision, the scale of numbers."""
    problem = predictor.problem
    fitted = {"scaling": predictor.scaling, "decision": problem.decision}
    targets = {"targets": problem.targets.to_dict()} if isinstance(problem, Regression) else {}
    return {"labels": predictor.labels} | {name: it and it.to_dict() for name, it in fitted.items()} | targets


def write_readme(path: Path, predictor: Predictor, *, target: str) -> None:
    """Write the lines of Python that run the folder."""
    imports, model, run = _RUNS[target]
    load = f'tokenizer, model = Tokenizer.from_file("tokenizer.json"), {model}'
    counting = [] if predictor.words is None else ["import re", "from collections import Counter"]
    lines = [
        "import json",
        *counting,
        "from pathlib import Path",
        "import numpy as np",
        *imports,
        "from tokenizers import Tokenizer",
        "",
        load,
    ]
    lines += [] if predictor.words is None else [OFFSET_CODE]
    lines += [*_about_lines(predictor), *_call_lines(predictor, run)]
    _write(
        path,
        f"# An exported model\n\n{_about(predictor)}",
        "onnxruntime" if target == "onnx" else target,
        lines,
        f"`config.json` has the labels, the longest document ({predictor.max_length} tokens) and "
        f"{_scaling_words(predictor)}; `tokenizer.json` truncates and pads by itself.",
    )


def write_shared_readme(path: Path, predictor: Predictor, name: str) -> None:
    """Write the lines of Python that run a graph with one of its adapters."""
    lines = [
        "import json",
        "from pathlib import Path",
        "import onnxruntime as ort",
        "import numpy as np",
        "from tokenizers import Tokenizer",
        "",
        'tokenizer, model = Tokenizer.from_file("tokenizer.json"), ort.InferenceSession("model.onnx")',
        "adapter, options = ort.LoraAdapter(), ort.RunOptions()",
        f'adapter.Load("adapters/{name}.onnx_adapter")  # once; then any of them in any run',
        "options.add_active_adapter(adapter)",
        *_about_lines(predictor, f'["adapters"][{name!r}]'),
        _read_line(predictor),
        _found_line(predictor),
        "inputs = {name: np.array([getattr(x, key) for x in found]) for name, key in READ.items()}",
        *_answer_lines(predictor, "model.run(None, inputs, options)"),
    ]
    _write(
        path,
        f"# One exported graph, many adapters\n\nExported by foretoken {__version__}.",
        "onnxruntime",
        lines,
        f"`config.json` has, for each adapter, the labels and {_scaling_words(predictor)}. A run without options is "
        "the first adapter's.",
    )


def _scaling_words(predictor: Predictor) -> str:
    if predictor.problem.name == REGRESSION:
        return "mean and standard deviation of the targets in training (the outputs are in the units of the data)"
    return "the recalibration of the probabilities and what is answered for them"


def _write(path: Path, head: str, package: str, lines: list[str], end: str) -> None:
    code = "\n".join(lines)
    how = f"`pip install {package} tokenizers`, and in this folder:"
    write_text(path, f"{head}\n\n{how}\n\n```python\n{code}\n```\n\n{end}\n")


def _about(predictor: Predictor) -> str:
    labels = ", ".join(predictor.labels[:8]) + (", ..." if len(predictor.labels) > 8 else "")
    of = f" of {labels}" if predictor.problem.labels else ""
    return f"{predictor.problem.name.replace('_', ' ').capitalize()}{of}, exported by foretoken {__version__}."


def _read_line(predictor: Predictor) -> str:
    read = {name: _READ[name] for name in input_names(predictor)}
    return f"READ = {read!r}".replace("'", '"')


def _about_lines(predictor: Predictor, of: str = "") -> list[str]:
    """Return the lines that read the labels and what is answered; none where there are no probabilities of labels."""
    if not predictor.problem.has_probabilities:
        return []
    kind, default = ("thresholds", 0.5) if predictor.problem.name == MULTI_LABEL else ("weights", 1.0)
    decision, name = predictor.problem.decision, kind.upper()
    numbers = default if decision is None else f'np.array(about["decision"]["{kind}"])'
    return [
        f'about = json.loads(Path("config.json").read_text(encoding="utf-8")){of}',
        f'LABELS, {name} = about["labels"], {numbers}',
    ]


def _texts(predictor: Predictor) -> str:
    return '[("one text", "and its second one")]' if predictor.problem.pairs else '["one text", "and another one"]'


def _found_line(predictor: Predictor) -> str:
    return f"found = tokenizer.encode_batch({_texts(predictor)})"


def _call_lines(predictor: Predictor, run: str) -> list[str]:
    """Return the lines that tokenise, run and answer."""
    names = _read_line(predictor)
    words = predictor.words is not None
    if predictor.chunks is None and words:
        whole = '" [SEP] ".join(x)' if predictor.problem.pairs else "x"
        found = [f"texts = {_texts(predictor)}", "found = tokenizer.encode_batch(texts)"]
        logits = f"logits = {run}[0] + np.array([offset({whole}) for x in texts])"
        return [names, *found, logits, *_scaled_lines(predictor)]
    if predictor.chunks is None:
        return [names, _found_line(predictor), *_answer_lines(predictor, run)]
    pool, most = predictor.chunks.pool, predictor.chunks.at_most
    kept = "" if most is None else f"[:{most}]"
    cut = ['text = "a text of any length"', "first = tokenizer.encode(text)"]
    cut += [f"found = [first, *first.overflowing]{kept}"]
    logits = f"logits = {run}[0].{pool}(axis=0, keepdims=True)" + " + offset(text)" * words
    return [names, *cut, logits, *_scaled_lines(predictor)]


def _answer_lines(predictor: Predictor, run: str) -> list[str]:
    """Return the lines from a run to the answers; to the logits of chunks and tags."""
    if predictor.problem.name == REGRESSION:
        return [f"print({run}[0].tolist())"]
    if not predictor.problem.has_probabilities or predictor.chunks is not None:
        return [f"logits = {run}[0]"]
    return [f"probabilities = {run}[1]", *_decided_lines(predictor)]


def _scaled_lines(predictor: Predictor) -> list[str]:
    """Return the lines from logits (B, C) to answers."""
    if not predictor.problem.has_probabilities:
        return ["print(logits.tolist())"]
    scaling = predictor.scaling
    weight, bias = ((1.0,), (0.0,)) if scaling is None else (scaling.weight, scaling.bias)
    numbers = f"weight, bias = np.array({list(weight)}), np.array({list(bias)})"
    if predictor.problem.name == MULTI_LABEL:
        made = ["probabilities = 1 / (1 + np.exp(-(logits * weight + bias)))"]
    else:
        made = [
            "scores = np.exp((logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)) * weight + bias)",
            "probabilities = scores / scores.sum(axis=1, keepdims=True)",
        ]
    return [numbers, *made, *_decided_lines(predictor)]


def _decided_lines(predictor: Predictor) -> list[str]:
    """Return the lines that answer for probabilities (B, C), as `foretoken predict` does."""
    if predictor.problem.name == MULTI_LABEL:
        return [
            "for row in probabilities:",
            "    answered = np.flatnonzero(row >= THRESHOLDS)",
            "    print([(LABELS[n], float(row[n])) for n in sorted(answered, key=lambda n: -row[n])])",
        ]
    best = "(probabilities * WEIGHTS).argmax(axis=1)"
    return [f"print([(LABELS[n], float(row[n])) for row, n in zip(probabilities, {best})])"]
