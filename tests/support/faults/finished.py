"""Finished runs of the tiny model, and folders to damage: what `foretoken predict` is given in these tests."""

import json
import shutil
import struct
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file

METHODS = {
    "prefix": {"name": "prefix-tuning", "num_virtual_tokens": 2},
    "lora": {"name": "lora", "r": 2},
    "stack": {"name": "stack", "configs": [{"name": "prefix-propagation", "num_virtual_tokens": 2}, "lora"]},
    "full": "full",
}
TEXT = "word1 prize word2"


def train_all(folder: Path, forked, tiny_files) -> dict[str, Path]:
    """Finish one run per method, on a model of their own; return their folders."""
    model = shutil.copytree(tiny_files.model, folder / "model")
    for name, method in METHODS.items():
        values = tiny_files.values(model=str(model), method=method, name=name, calibration="temperature")
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
        ended = forked("train", f"{name}.yaml", cwd=folder)
        assert ended.code == 0, ended.err
    return {name: folder / "runs" / name for name in METHODS}


def saved(run: Path) -> Path:
    """Return the folder that a run saved its adapter or model in."""
    return next(run / name for name in ("adapter", "model") if (run / name).is_dir())


def copied(run: Path, folder: Path) -> Path:
    """Return a copy of what a run saved, with a base model of its own beside it."""
    copy = shutil.copytree(saved(run), folder / "saved")
    if (copy / "adapter_config.json").exists():
        base = shutil.copytree(run.parent.parent / "model", folder / "base")
        edit(copy / "adapter_config.json", base_model_name_or_path=str(base))
    return copy


def edit(file: Path, **changes: object) -> None:
    """Change fields of a JSON file; `...` removes one."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))


def weights(folder: Path) -> Path:
    """Return the file of a saved folder's tensors."""
    return next(folder.glob("*model.safetensors"))


def change_tensor(folder: Path, name: str, change) -> None:
    """Replace the first tensor whose name has this part by what `change` returns; None removes it."""
    tensors = load_file(weights(folder))
    key = next(key for key in sorted(tensors) if name in key)
    new = change(tensors.pop(key))
    save_file(tensors if new is None else tensors | {key: new.contiguous()}, weights(folder), {"format": "pt"})


def with_value(value: float):
    """Return a change that puts one value into a tensor."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


def header_of(file: Path) -> tuple[int, dict]:
    """Return where a safetensors file's numbers begin, and its header."""
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return 8 + length, json.loads(raw[8 : 8 + length])


def with_header(file: Path, header: dict) -> None:
    """Give a safetensors file another header."""
    start, _ = header_of(file)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + file.read_bytes()[start:])


def sane(out: str) -> None:
    """Assert one line of JSON whose probabilities are finite and sum to 1."""
    (line,) = out.splitlines()
    answer = json.loads(line, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert abs(sum(answer["probabilities"].values()) - 1) < 1e-4
    assert answer["probability"] == max(answer["probabilities"].values())
    assert answer["label"] in answer["probabilities"]
