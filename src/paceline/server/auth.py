"""API keys: `Authorization: Bearer KEY` on everything but the pages a monitor reads."""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.server.errors import error_response

OPEN_PATHS = frozenset({"/health", "/metrics", "/version"})


class RequireKey:
    """ASGI middleware. Keys are compared by digest and in constant time."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self.app = app
        self.digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._known(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        refusal = error_response(
            "a valid API key is needed, as `Authorization: Bearer KEY`",
            401,
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal(scope, receive, send)

    def _known(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self.digests]
        return True in matches


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
