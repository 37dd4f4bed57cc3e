"""Reading a request's body: bounded while it arrives, strict JSON, then its schema."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from paceline.errors import RequestError
from paceline.server.errors import ClientGone
from paceline.server.validation import first_fault

Schema = TypeVar("Schema", bound=BaseModel)


async def read_body(request: Request, limit: int, timeout: float) -> bytes:
    """The whole body. Never holds more than `limit` bytes, whatever the headers say.

    Raises RequestError: status 413 above `limit`, 400 when nothing arrives for `timeout` seconds. After an answer the
    HTTP layer goes on reading and dropping what the client still sends, so the client sees the answer.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            message = await asyncio.wait_for(request.receive(), timeout)
        except asyncio.TimeoutError:
            raise RequestError(f"the body did not arrive: {size} bytes, then nothing for {timeout:g} seconds") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. RequestError for anything else: bad UTF-8, lone surrogates, NaN, absurd nesting."""
    if not body:
        raise RequestError("the body is empty; it must be a JSON object", code="invalid_json")
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {type(value).__name__}", code="invalid_json")
    return value


def validate(schema: type[Schema], value: dict[str, Any]) -> Schema:
    """`value` as a `schema`; RequestError naming the first field at fault."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise first_fault(error.errors(include_url=False)) from None


def _too_large(limit: int) -> RequestError:
    return RequestError(f"the body is larger than {limit} bytes (--max-body-size)", code="body_too_large", status=413)
