"""One request: send it, read its stream, note when each token came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from paceline.bench.connection import reason
from paceline.bench.sse import DONE, Events
from paceline.bench.target import Target
from paceline.workload.records import Outcome

NAN = float("nan")
Clock = Callable[[], float]


@dataclass
class Reply:
    """What came back. Times are seconds on the clock that was given."""

    sent: float
    first: float = NAN
    last: float = NAN
    outcome: Outcome = Outcome.INCOMPLETE
    prompt_tokens: int = -1
    """By the server's count; -1: it did not say."""
    output_tokens: int = 0
    cached_tokens: int = -1
    chunks: int = 0
    counted: bool = False
    """The number of output tokens is the server's."""
    finish_reason: str = ""
    error: str = ""
    gaps: list[float] = field(default_factory=list)
    """Seconds between chunks with tokens: tokens that came together have no gap between them."""


async def send(session: aiohttp.ClientSession, target: Target, body: bytes, clock: Clock = time.perf_counter) -> Reply:
    """Never raises for what a server or a network does: it is in the reply."""
    reply = Reply(clock())
    try:
        async with session.post(target.path, data=body, headers=target.headers) as answer:
            if answer.status != 200:
                reply.outcome = Outcome.REFUSED if answer.status in (429, 503) else Outcome.ERROR
                reply.error = f"status {answer.status}: {_message(await answer.read())}"
            else:
                await _read(answer, reply, clock)
    except asyncio.TimeoutError:
        reply.error = "timed out"
    except asyncio.CancelledError:
        reply.error = "cut off by the end of the run"
    except (aiohttp.ClientError, OSError) as error:
        reply.outcome = Outcome.ERROR
        reply.error = f"{type(error).__name__}: {reason(error)}"[:200]
    if reply.outcome is not Outcome.OK and reply.last != reply.last:
        reply.last = clock()
    return reply


async def _read(answer: aiohttp.ClientResponse, reply: Reply, clock: Clock) -> None:
    events, done = Events(), False
    async for data in answer.content.iter_any():
        now = clock()
        for event in events.feed(data):
            done = _note(reply, event, now) or done
    for event in events.close():
        done = _note(reply, event, clock()) or done
    if reply.error:
        reply.outcome = Outcome.ERROR
    elif reply.first != reply.first:
        reply.error = "the stream ended without a token"
        reply.outcome = Outcome.ERROR if done else Outcome.INCOMPLETE
    elif done or reply.finish_reason:
        reply.outcome = Outcome.OK
    else:
        reply.error = "the stream broke off"


def _note(reply: Reply, event: bytes, now: float) -> bool:
    """Take in one event; True: it was the last."""
    if event == DONE:
        return True
    try:
        value = json.loads(event)
    except ValueError:
        reply.error = f"an event is not JSON: {event[:80]!r}"
        return False
    if not isinstance(value, dict):
        return False
    if value.get("error"):
        reply.error = _message(event)
        return False
    choices = value.get("choices") or []
    fresh = any(_has_text(choice) for choice in choices)
    for choice in choices:
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
    fresh = _count(reply, value.get("usage"), bool(choices)) or fresh
    if not fresh:
        return False
    if reply.first != reply.first:
        reply.first = now
    elif now > reply.last:
        # Events that came in one read have one time, and no gap between them.
        reply.gaps.append(now - reply.last)
    reply.last = now
    reply.chunks += 1
    if not reply.counted:
        reply.output_tokens += 1
    return False


def _count(reply: Reply, usage: Any, in_stream: bool) -> bool:
    """Take in the server's counts; True: a chunk's own count says there are new tokens."""
    if not isinstance(usage, dict):
        return False
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if isinstance(prompt, int):
        reply.prompt_tokens = prompt
    if isinstance(cached, int):
        reply.cached_tokens = cached
    if not isinstance(output, int):
        return False
    more = in_stream and output > (reply.output_tokens if reply.counted else 0)
    reply.output_tokens, reply.counted = output, True
    return more


def _has_text(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))


def _message(body: bytes) -> str:
    try:
        value = json.loads(body)
        found = value.get("error", value) if isinstance(value, dict) else value
        text = found.get("message", found) if isinstance(found, dict) else found
    except ValueError:
        text = body[:200].decode("utf-8", "replace")
    return " ".join(str(text).split())[:200]
