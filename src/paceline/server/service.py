"""What every endpoint works with, and the steps they share: read, check the model, start a generation."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from paceline.core.params import SamplingParams
from paceline.engine.async_engine import AsyncEngine
from paceline.errors import RequestError
from paceline.server.auth import Caller
from paceline.server.body import parse_json, read_body, validate
from paceline.server.config import ServerConfig
from paceline.server.generation import Generation
from paceline.server.metrics import Metrics
from paceline.server.models import Body, GenerationBody
from paceline.server.prompts import PromptTokens
from paceline.server.unsupported import UnknownFields, refuse_misspelt, refuse_unsupported

Schema = TypeVar("Schema", bound=Body)
DEFAULT_TENANT = "default"  # of requests without a key of a tenant's and without `user`


@dataclass
class Service:
    """One engine behind one HTTP server."""

    engine: AsyncEngine
    config: ServerConfig
    metrics: Metrics
    created: int = field(default_factory=lambda: int(time.time()))
    unknown: UnknownFields = field(default_factory=UnknownFields)

    async def read(self, request: Request, schema: type[Schema]) -> Schema:
        """The body of a request as a `schema`. RequestError for anything wrong with it, the model's name included."""
        raw = await read_body(request, self.config.max_body_size, self.config.body_timeout)
        body = validate(schema, parse_json(raw))
        self.check_model(body.model)
        refuse_unsupported(body.model_extra, getattr(body, "n", None))
        refuse_misspelt(body.model_extra, schema.model_fields)
        self.unknown.note(body.model_extra)
        return body

    def check_model(self, model: str | None) -> None:
        """RequestError (404) unless the model is ours; no name means the one there is."""
        if model is not None and model != self.engine.model_name:
            raise RequestError(
                f"the model {model[:200]!r} does not exist; this server has {self.engine.model_name!r}",
                param="model",
                code="model_not_found",
                status=404,
            )

    def generation(
        self, kind: str, request: Request, body: GenerationBody, prompts: Sequence[PromptTokens], params: SamplingParams
    ) -> Generation:
        """A generation that has not started yet, under a fresh id."""
        caller: Caller = request.state.caller
        tenant = caller.tenant or body.user or DEFAULT_TENANT
        return Generation(
            engine=self.engine,
            metrics=self.metrics,
            id=f"{kind}-{uuid.uuid4().hex}",
            prompts=prompts,
            params=params,
            priority=self.engine.tenants.priority(tenant, body.priority),
            tenant=tenant,
            owner=caller.owner,
            cache_salt=caller.cache_salt(body.cache_salt),
            queue_timeout=body.queue_timeout,
            timeout=body.timeout,
        )

    def head(self, generation: Generation, kind: str) -> dict[str, Any]:
        """The fields every response object and chunk starts with."""
        return {
            "id": generation.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.engine.model_name,
        }


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]


def body_schema(schema: type[Body]) -> dict[str, Any]:
    """For a route's `openapi_extra`: bodies are read by us, so FastAPI does not know their schema."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
