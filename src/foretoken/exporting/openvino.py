"""ONNX files as OpenVINO's, and a run of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretoken.exporting.graph import Inputs


def to_openvino(source: Path, target: Path) -> None:
    """Convert an ONNX file, with its weights in the type that they have."""
    import openvino

    openvino.save_model(openvino.convert_model(str(source)), str(target), compress_to_fp16=False)


def run_openvino(path: Path, inputs: Inputs) -> dict[str, Any]:
    """Return the outputs of a file by name."""
    import openvino

    model = openvino.compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = model({name: tensor.numpy() for name, tensor in inputs.items()})
    return {output.get_any_name(): values for output, values in found.items()}
