"""Routes beside prediction: the page, the adapters, loading and removing them, metrics."""

from __future__ import annotations

import tempfile
import time
import uuid
from importlib.resources import files
from typing import Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from foretoken.errors import AdapterError, BackboneError, ConfigError
from foretoken.files import remove as remove_files
from foretoken.serving.adapters import Adapter
from foretoken.serving.folders import check_name, unpack
from foretoken.serving.http.service import ANY_ERROR, ServiceOf, needs_admin_key, needs_key
from foretoken.serving.schema import AdapterAnswer, ErrorAnswer, ModelItem, ModelsAnswer

_ERRORS = {status: about | {"model": ErrorAnswer} for status, about in ANY_ERROR.items()}
router = APIRouter()
guarded = APIRouter(dependencies=[Depends(needs_key)], responses=_ERRORS)
admin = APIRouter(dependencies=[Depends(needs_admin_key)], tags=["adapters"], responses=_ERRORS)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
_STARTED = int(time.time())


@router.get("/", include_in_schema=False)
async def playground() -> HTMLResponse:
    """Show the page to try adapters on."""
    page = files("foretoken.serving.http").joinpath("playground.html").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
    )
    return HTMLResponse(page, headers={"content-security-policy": policy, "x-content-type-options": "nosniff"})


@guarded.get("/metrics", tags=["operations"], response_class=Response)
async def metrics(service: ServiceOf) -> Response:
    """Return the numbers for Prometheus."""
    return Response(service.metrics.page(service.engine), media_type="text/plain; version=0.0.4; charset=utf-8")


@guarded.get("/v1/models", tags=["adapters"], response_model=ModelsAnswer)
async def models(service: ServiceOf) -> ModelsAnswer:
    """List the adapters; their `parent` is the pretrained model, which is the last one.

    `dtype` is that of an adapter's own numbers as they are kept, `precision` what the pretrained model computes in.
    """
    store = service.running.store
    named, precision = store.base_name, store.base.precision
    base = ModelItem(id=named, created=_STARTED, root=named, precision=precision)
    return ModelsAnswer(data=[*(_item(store.get(name), named, precision) for name in store.names), base])


@admin.post("/v1/adapters/{name}", response_model=AdapterAnswer, status_code=201)
async def load(name: str, http: Request, service: ServiceOf) -> AdapterAnswer:
    """Load an adapter, or replace one: the body is a zip archive of its files.

    `adapter_config.json`, `adapter_model.safetensors` and foretoken's card are read, nothing else. Where anything is
    wrong, what runs goes on as it is.
    """
    folder = service.uploads / uuid.uuid4().hex
    try:
        check_name(name)
        with tempfile.TemporaryFile(dir=service.uploads) as archive:
            async for part in http.stream():
                await run_in_threadpool(archive.write, part)
            await run_in_threadpool(unpack, archive, folder, most_bytes=service.settings.adapter_bytes)
        adapter = await run_in_threadpool(service.running.add, name, folder, owned=True)
    except BaseException as error:
        remove_files(folder)
        if isinstance(error, AdapterError | BackboneError):  # what was sent is at fault, and not what runs
            raise ConfigError(str(error).replace(str(folder), name)) from error
        raise
    return _answer(adapter, "loaded")


@admin.delete("/v1/adapters/{name}", response_model=AdapterAnswer)
async def remove(name: str, service: ServiceOf) -> AdapterAnswer:
    """Remove an adapter; requests that were accepted before are answered by it."""
    adapter = await service.call(lambda: service.running.store.remove(name))
    return _answer(adapter, "removed")


def _answer(adapter: Adapter, status: Literal["loaded", "removed"]) -> AdapterAnswer:
    return AdapterAnswer(
        name=adapter.name,
        status=status,
        task=adapter.problem.name,
        labels=list(adapter.labels),
        method=adapter.method,
    )


def _item(adapter: Adapter, parent: str, precision: str) -> ModelItem:
    return ModelItem(
        id=adapter.name,
        created=_STARTED,
        root=adapter.name,
        parent=parent,
        task=adapter.problem.name,
        labels=list(adapter.labels),
        method=adapter.method,
        max_model_len=adapter.settings.max_length,
        calibrated=adapter.scaling is not None,
        dtype=adapter.dtype,
        precision=precision,
    )
