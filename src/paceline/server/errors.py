"""Errors in the OpenAI API's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from paceline.errors import EngineDeadError, RequestError
from paceline.server.validation import first_fault

log = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def error_body(message: str, status: int, param: str | None = None, code: str | int | None = None) -> dict[str, Any]:
    """The JSON object clients get for an error with this HTTP status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code or status}}


def error_response(
    message: str,
    status: int,
    *,
    param: str | None = None,
    code: str | int | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """An error as a whole response."""
    return JSONResponse(error_body(message, status, param, code), status, dict(headers or {}))


def retry_headers(error: Exception) -> dict[str, str]:
    """`Retry-After` in whole seconds, where an error knows when to come back."""
    seconds = getattr(error, "retry_after", None)
    return {} if seconds is None else {"Retry-After": str(max(math.ceil(seconds), 1))}


def describe(error: Exception) -> tuple[str, int, str | None, str | None]:
    """(message, status, param, code) of an exception raised while serving a request."""
    if isinstance(error, RequestError):
        return str(error), error.status, error.param, error.code
    if isinstance(error, EngineDeadError):
        return str(error) or "the engine is shutting down", 503, None, "engine_unavailable"
    log.error("a request failed unexpectedly", exc_info=error)
    return "the server failed on this request; its log says why", 500, None, "internal_error"


def install_error_handlers(app: FastAPI) -> None:
    """Make every way a request can fail answer in the one shape."""

    async def on_error(request: Request, error: Exception) -> Response:
        message, status, param, code = describe(error)
        return error_response(message, status, param=param, code=code, headers=retry_headers(error))

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = {
            404: f"there is no {request.url.path} here",
            405: f"{request.method} is not a method of {request.url.path}",
        }.get(error.status_code, str(error.detail))
        return error_response(message, error.status_code, headers=error.headers)

    async def on_wrong_query(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await on_error(request, first_fault(error.errors()))

    async def on_client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    app.add_exception_handler(RequestError, on_error)
    app.add_exception_handler(EngineDeadError, on_error)
    app.add_exception_handler(RequestValidationError, on_wrong_query)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_error)
