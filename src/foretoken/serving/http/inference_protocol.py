"""The Open Inference Protocol, version 2: health, metadata, inference."""

from __future__ import annotations

import numpy as np
from fastapi import APIRouter, Depends, Request, Response

import foretoken
from foretoken.data.problems import MULTIPLE_CHOICE, QUESTION_ANSWERING, TOKEN_CLASSIFICATION
from foretoken.errors import ConfigError
from foretoken.serving.adapters import Adapter
from foretoken.serving.http.service import ANY_ERROR, Service, ServiceOf, needs_key
from foretoken.serving.schema import ErrorAnswer, InferAnswer, InferRequest, InferTensor
from foretoken.serving.tasks import Classify, Document, Prediction

_ERRORS = {status: about | {"model": ErrorAnswer} for status, about in ANY_ERROR.items()}
router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])
guarded = APIRouter(
    prefix="/v2", tags=["Open Inference Protocol"], dependencies=[Depends(needs_key)], responses=_ERRORS
)


@router.get("/health/live")
async def live() -> dict[str, bool]:
    """Tell that the process runs."""
    return {"live": True}


@router.get("/health/ready", responses={503: {"description": "the server is starting or stopping"}})
async def ready(answer: Response, service: ServiceOf) -> dict[str, bool]:
    """Tell whether requests are answered."""
    if not service.is_ready:
        answer.status_code = 503
    return {"ready": service.is_ready}


@router.get("")
async def server() -> dict[str, object]:
    """Say what the server is."""
    return {"name": "foretoken", "version": foretoken.__version__, "extensions": []}


@guarded.get("/models/{adapter}")
async def model(adapter: str, service: ServiceOf) -> dict[str, object]:
    """Say what an adapter takes and returns."""
    chosen = _classifier(service, adapter)
    outputs: list[dict[str, object]] = [{"name": "label", "datatype": "BYTES", "shape": [-1]}]
    if chosen.problem.has_probabilities:
        outputs.append({"name": "probabilities", "datatype": "FP64", "shape": [-1, len(chosen.labels)]})
    else:
        outputs = [{"name": "value", "datatype": "FP64", "shape": [-1]}]
    inputs = ["text", "text_pair"] if chosen.problem.pairs else ["text"]
    return {
        "name": chosen.name,
        "versions": ["1"],
        "platform": "foretoken",
        "inputs": [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in inputs],
        "outputs": outputs,
    }


@guarded.get("/models/{adapter}/ready")
async def model_ready(adapter: str, service: ServiceOf) -> dict[str, object]:
    """Tell whether an adapter can be asked."""
    return {"name": service.adapter(adapter).name, "ready": service.is_ready}


@guarded.post("/models/{adapter}/infer", response_model=InferAnswer)
async def infer(adapter: str, asked: InferRequest, http: Request, service: ServiceOf) -> InferAnswer:
    """Predict: the input `text` (and `text_pair`) of type BYTES; outputs `label` and `probabilities`, or `value`.

    The output `truncated` says which documents were cut.
    """
    chosen = _classifier(service, adapter)
    found = await service.ask(http, chosen, _documents(asked), Classify())
    return InferAnswer(model_name=chosen.name, id=asked.id, outputs=_outputs(found))


def _classifier(service: Service, name: str) -> Adapter:
    adapter = service.adapter(name)
    if adapter.problem.name in (TOKEN_CLASSIFICATION, MULTIPLE_CHOICE, QUESTION_ANSWERING):
        raise ConfigError(f"{name!r} does {adapter.problem.name}, which POST /models/{name} answers")
    return adapter


def _documents(asked: InferRequest) -> list[Document]:
    columns = []
    for tensor in asked.inputs:
        expected = [len(tensor.data)]
        if tensor.datatype != "BYTES" or tensor.shape not in (expected, [*expected, 1]):
            raise ConfigError(
                f"input {tensor.name[:50]!r}: expected datatype BYTES, a flat list of texts and shape {expected}"
            )
        if not all(isinstance(text, str) for text in tensor.data):
            raise ConfigError(f"input {tensor.name[:50]!r}: expected texts")
        columns.append(tensor.data)
    if len({len(column) for column in columns}) > 1:
        raise ConfigError("the two inputs have unequal numbers of texts")
    return [Document(*texts) for texts in zip(*columns, strict=True)]


def _outputs(found: list[Prediction]) -> list[InferTensor]:
    count = [len(found)]
    cut = InferTensor(name="truncated", datatype="BOOL", shape=count, data=[item.truncated for item in found])
    if found[0].probabilities is None:
        values = [float(item.logits[0]) for item in found]
        return [InferTensor(name="value", datatype="FP64", shape=count, data=values), cut]
    labels = [item.labels[item.best] for item in found]
    table = np.array([item.probabilities for item in found])
    return [
        InferTensor(name="label", datatype="BYTES", shape=count, data=labels),
        InferTensor(name="probabilities", datatype="FP64", shape=list(table.shape), data=table.ravel().tolist()),
        cut,
    ]
