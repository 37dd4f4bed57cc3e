"""What a client or a monitor asks about the server itself: models, health, version, metrics."""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from paceline import __version__
from paceline.errors import EngineDeadError
from paceline.server.errors import error_response
from paceline.server.models import ModelCard
from paceline.server.service import Service, TheService
from paceline.server.streaming import JSON

log = logging.getLogger(__name__)
router = APIRouter()
STATS_TIMEOUT = 5.0  # seconds a scrape waits for the engine


@router.get("/v1/models")
async def models(service: TheService) -> Response:
    return JSON({"object": "list", "data": [_card(service).model_dump()]})


@router.get("/v1/models/{model:path}")
async def model(model: str, service: TheService) -> Response:
    service.check_model(model)
    return JSON(_card(service).model_dump())


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(service: TheService) -> Response:
    if not service.engine.is_healthy:
        return error_response(service.engine.state, 503, code="engine_unavailable")
    return JSON({"status": "ok"})


@router.get("/version")
async def version() -> Response:
    return JSON({"version": __version__})


@router.get("/metrics")
async def metrics(service: TheService) -> Response:
    try:
        stats = await asyncio.wait_for(service.engine.stats(), STATS_TIMEOUT)
    except (EngineDeadError, asyncio.TimeoutError) as error:
        log.warning("the engine's figures are missing from /metrics: %r", error)
        stats = None
    return Response(service.metrics.render(stats), media_type=CONTENT_TYPE_LATEST)


def _card(service: Service) -> ModelCard:
    engine = service.engine
    return ModelCard(
        id=engine.model_name,
        created=service.created,
        root=engine.config.model,
        max_model_len=engine.max_model_len,
    )
