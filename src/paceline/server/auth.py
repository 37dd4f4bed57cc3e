"""API keys: `Authorization: Bearer KEY` on everything but the pages a monitor reads. A key says who is asking."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.engine.async_engine import AsyncEngine
from paceline.engine.tenants import Tenants, digest_of
from paceline.server.config import ServerConfig
from paceline.server.errors import error_response

OPEN_PATHS = frozenset({"/health", "/metrics", "/version"})


@dataclass(frozen=True)
class Caller:
    """Who sent a request. `tenant` None: who its `user` says. Cached KV is shared within a `namespace` only."""

    tenant: str | None = None
    namespace: str | None = None  # None: shared with everybody who has none
    key: str | None = None  # digest of a key that belongs to no tenant by name

    @property
    def owner(self) -> str | None:
        """Whose requests this caller's are, and may see."""
        return self.key if self.tenant is None else f"tenant {self.tenant}"

    def cache_salt(self, salt: str | None) -> str | None:
        """The salt of a request that came with this one. No salt leads out of the namespace."""
        return salt if self.namespace is None else f"{len(self.namespace)}:{self.namespace}:{salt or ''}"


ANYBODY = Caller()


class Callers:
    """Who has which key. Keys are kept and looked up by digest."""

    def __init__(self, config: ServerConfig, tenants: Tenants, required: bool = False) -> None:
        """`required`: a key is needed, even if there is none to be had any more."""
        self.by_digest: dict[str, Caller] = {}
        for key in config.api_keys:
            digest = digest_of(key)
            self.by_digest[digest] = Caller(None, None if config.share_cache else f"key {digest}", f"key {digest}")
        for digest, tenant in tenants.keys.items():
            self.by_digest[digest] = Caller(tenant, tenants.cache_group(tenant))
        self.required = required or bool(self.by_digest)

    def of(self, headers: Headers) -> Caller | None:
        """None: nobody we know."""
        if not self.required:
            return ANYBODY
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return self.by_digest.get(digest_of(key)) if scheme.lower() == "bearer" else None


class RequireKey:
    """ASGI middleware: puts the caller into `scope["state"]`, and answers 401 where a key is needed and missing."""

    def __init__(self, app: ASGIApp, engine: AsyncEngine, config: ServerConfig) -> None:
        self.app = app
        self.engine = engine
        self.config = config
        self._tenants = engine.tenants
        self._callers = Callers(config, engine.tenants)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        caller = self._current().of(Headers(scope=scope))
        if caller is not None:
            scope.setdefault("state", {})["caller"] = caller
            await self.app(scope, receive, send)
            return
        refusal = error_response(
            "a valid API key is needed, as `Authorization: Bearer KEY`",
            401,
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refusal(scope, receive, send)

    def _current(self) -> Callers:
        if self._tenants is not self.engine.tenants:  # they were read again
            self._tenants = self.engine.tenants
            self._callers = Callers(self.config, self._tenants, self._callers.required)
        return self._callers
