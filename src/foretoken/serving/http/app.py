"""The application: routes, errors and what stands before them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from foretoken.errors import AdapterError, BackboneError, ForetokenError
from foretoken.serving.errors import BusyError, ComputeError, NoSuchAdapterError, NotReadyError, TooLongError
from foretoken.serving.http import management, predict
from foretoken.serving.http.guard import FAULT, Guard, error_answer
from foretoken.serving.http.service import Service
from foretoken.version import __version__

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (NotReadyError, 503),
    (NoSuchAdapterError, 404),
    (TooLongError, 413),
    (BusyError, 429),
    (ComputeError, 424),
    (AdapterError, 424),
    (BackboneError, 424),
    (ForetokenError, 422),
)


def make_app(service: Service) -> ASGIApp:
    """Return the application around a service."""
    app = _App(
        title="foretoken",
        version=__version__,
        summary="Many adapters of one pretrained model.",
        openapi_tags=[{"name": name} for name in ("predict", "adapters", "operations")],
    )
    app.state.service = service
    for router in (predict.router, management.router, management.guarded, management.admin):
        app.include_router(router)
    app.add_exception_handler(ForetokenError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)
    settings = service.settings
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            expose_headers=["x-request-id", "x-truncated", "retry-after"],
        )
    return Guard(app, settings=settings, metrics=service.metrics)


async def _on_error(_: Request, error: Exception) -> JSONResponse:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    headers = {"retry-after": str(getattr(error, "retry_after", 1))} if status in (429, 503) else {}
    return error_answer(status, str(error), kind=type(error).__name__, headers=headers)


async def _on_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = error.detail or HTTPStatus(error.status_code).phrase
    return error_answer(error.status_code, str(message), headers=error.headers)


async def _on_fault(_: Request, error: Exception) -> JSONResponse:
    return error_answer(500, FAULT)


class _App(FastAPI):
    """Describes the bodies that routes read themselves, after the key and within the limits."""

    def openapi(self) -> dict[str, Any]:
        """Return the description, with what the requests refer to."""
        if self.openapi_schema is None:
            schemas = super().openapi()["components"]["schemas"]
            for model in predict.REQUESTS:
                schema = model.model_json_schema(ref_template=predict.REFERENCE)
                schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
        return super().openapi()
