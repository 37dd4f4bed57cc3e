"""The server under test: where it is, what it is called, and what it understands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from paceline.bench.connection import reason, timed_out
from paceline.bench.errors import BenchError

ENDPOINTS = ("completions", "chat")


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server."""

    url: str
    """Without the `/v1`."""
    model: str = ""
    endpoint: str = "completions"
    api_key: str | None = None
    token_ids: bool = True
    """Prompts are sent as token ids; else as words."""
    ignore_eos: bool = True
    continuous_usage: bool = True
    """Each chunk says how many tokens there are so far."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    max_model_len: int | None = None

    @property
    def path(self) -> str:
        return f"{self.url}/v1/{'chat/completions' if self.endpoint == 'chat' else 'completions'}"

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        return headers | ({"Authorization": f"Bearer {self.api_key}"} if self.api_key else {})


def open_session(timeout: float) -> aiohttp.ClientSession:
    """A session without a limit of connections: a client that queues inside measures itself."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=3600, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 60)),
        read_bufsize=2**18,
        trust_env=False,
    )


async def discover(session: aiohttp.ClientSession, target: Target) -> Target:
    """Fill in the model's name and find out what the server takes. BenchError where it does not answer."""
    target = replace(target, url=target.url.rstrip("/").removesuffix("/v1"))
    if not target.url.startswith(("http://", "https://")):
        raise BenchError(f"--base-url {target.url}: it must start with http:// or https://")
    if target.endpoint not in ENDPOINTS:
        raise BenchError(f"--endpoint {target.endpoint}: it must be one of {', '.join(ENDPOINTS)}")
    card = await _model_card(session, target)
    target = replace(
        target,
        model=target.model or str(card.get("id", "")),
        max_model_len=card.get("max_model_len") if isinstance(card.get("max_model_len"), int) else None,
        version=f"{card.get('owned_by') or 'server'} {await _version(session, target)}".strip(),
    )
    if not target.model:
        raise BenchError(f"{target.url}/v1/models names no model; give --model")
    return await _probe(session, target)


async def _model_card(session: aiohttp.ClientSession, target: Target) -> dict[str, Any]:
    try:
        async with session.get(f"{target.url}/v1/models", headers=target.headers) as answer:
            if answer.status in (401, 403):
                raise BenchError(f"{target.url} wants a key (status {answer.status}); give --api-key")
            if answer.status != 200:
                return {}
            cards = (await answer.json(content_type=None)).get("data") or [{}]
    except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError, OSError) as error:
        raise _no_answer(session, target.url, error) from None
    except (ValueError, AttributeError):
        raise BenchError(f"{target.url}/v1/models does not answer with a list of models") from None
    named = [card for card in cards if isinstance(card, dict) and card.get("id") == target.model]
    return dict(named[0] if named else cards[0])


async def _version(session: aiohttp.ClientSession, target: Target) -> str:
    try:
        async with session.get(f"{target.url}/version", headers=target.headers) as answer:
            return str((await answer.json(content_type=None))["version"]) if answer.status == 200 else ""
    except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError, ValueError, KeyError, TypeError):
        return ""


async def _probe(session: aiohttp.ClientSession, target: Target) -> Target:
    """Ask for two tokens, leaving out one by one what the server does not take."""
    without: list[dict[str, Any]] = [{}, {"continuous_usage": False}]
    if target.ignore_eos:
        without.append({"continuous_usage": False, "ignore_eos": False})
    if target.token_ids and target.endpoint == "completions":
        without += [{"token_ids": False}, {"token_ids": False, "continuous_usage": False}]
        without.append({"token_ids": False, "continuous_usage": False, "ignore_eos": False})
    first = ""
    for change in without:
        attempt = replace(target, **change)
        if attempt.endpoint == "chat":
            attempt = replace(attempt, token_ids=False)
        status, said = await _try(session, attempt)
        if status == 200:
            return attempt
        first = first or f"status {status}: {said}"
        if status not in (400, 404, 415, 422, 500):
            break
    raise BenchError(f"{target.path} does not serve a test request; {first}")


async def _try(session: aiohttp.ClientSession, target: Target) -> tuple[int, str]:
    from paceline.bench.bodies import body_of

    ids, text = ([1000, 1001, 1002, 1003], None) if target.token_ids else (None, "One two three four")
    try:
        body = body_of(target, 2, ids=ids, text=text)
        async with session.post(target.path, data=body, headers=target.headers) as answer:
            return answer.status, (await answer.text())[:300]
    except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError, OSError) as error:
        raise _no_answer(session, target.path, error) from None


def _no_answer(session: aiohttp.ClientSession, url: str, error: BaseException) -> BenchError:
    if timed_out(error):
        limit = session.timeout.total or 0.0
        return BenchError(f"{url} did not answer within --timeout {limit:g} (seconds); raise it, or see to the server")
    return BenchError(f"no server answers at {url}: {reason(error)}")
