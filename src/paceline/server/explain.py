"""`GET /v1/requests` and `/v1/requests/{id}`: why a request waits, and where the time of one that ended went."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from paceline.engine.request_log import Entry
from paceline.errors import RequestError
from paceline.server.auth import ANYBODY, Caller
from paceline.server.service import Service, TheService
from paceline.server.streaming import JSON

router = APIRouter()
ANSWER_TIMEOUT = 5.0  # seconds the engine gets; then what is known here is told
MOST_LISTED = 1000

_NAME = re.compile(r"[\w.:-]+(?:#\d+)?")


@router.get("/v1/requests")
async def requests(
    request: Request,
    service: TheService,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
    ended: Annotated[bool, Query(description="the last ones that have ended as well")] = False,
) -> Response:
    """Live requests, oldest first, then those that have ended, newest first; those of the caller's only."""
    mine = _Mine(service, request.state.caller)
    live = [entry for entry in service.engine.log.live() if mine.has(entry)]
    shown = live[:limit]
    if ended:
        shown += [entry for entry in service.engine.log.ended() if mine.has(entry)][: limit - len(shown)]
    found: dict[str, Any] = {"object": "list", "live": len(live), "data": await mine.reports(shown)}
    if mine.all:
        found["pitfalls"] = [
            {"name": name, "windows": service.engine.pitfalls.counts[name], "words": words}
            for name, words in service.engine.pitfalls.said.items()
        ]
    return JSON(found)


@router.get("/v1/requests/{request_id}")
async def one_request(request_id: str, request: Request, service: TheService) -> Response:
    """One request; all its parts where it had several prompts."""
    mine = _Mine(service, request.state.caller)
    entries = [entry for entry in service.engine.log.find(request_id) if mine.has(entry)]
    if not entries:
        raise RequestError(
            f"there is no request {request_id[:200]!r}, or it ended too long ago "
            f"(--request-log-size {service.engine.config.request_log_size})",
            code="request_not_found",
            status=404,
        )
    reports = await mine.reports(entries)
    if len(reports) == 1 and reports[0]["id"] == request_id:
        return JSON(reports[0])
    return JSON({"id": request_id, "object": "request", "parts": reports})


class _Mine:
    """What one caller may see: everything where no keys are configured, else what was asked with the same key."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._owner = caller.owner
        self.all = caller is ANYBODY

    def has(self, entry: Entry) -> bool:
        return self.all or entry.owner == self._owner

    async def reports(self, entries: Iterable[Entry]) -> list[dict[str, Any]]:
        entries = list(entries)
        engine = self._service.engine
        numbers = [entry.number for entry in entries if entry.end is None]
        live: dict[int, dict[int, dict[str, Any]]] = {}
        if numbers:
            with suppress(asyncio.TimeoutError):
                live = await asyncio.wait_for(engine.explain(numbers), ANSWER_TIMEOUT)
        others = set() if self.all else {entry.id for entry in engine.log.live() if not self.has(entry)}
        for sequences in live.values():
            for lines in sequences.values():
                if "why" in lines and others:
                    lines["why"] = _without_names(lines["why"], others)
        return [entry.report(engine.log.now, live.get(entry.number)) for entry in entries]


def _without_names(text: str, names: set[str]) -> str:
    """Reasons name those who are in the way; a tenant need not know the others'."""
    return _NAME.sub(
        lambda found: "another request" if found[0].rstrip(":.").split("#")[0] in names else found[0], text
    )
