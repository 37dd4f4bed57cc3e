"""The server's own view: its `/metrics`, sampled beside the load. Paceline's, vLLM's and SGLang's names are known."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import aiohttp

from paceline.bench.target import Target
from paceline.workload.run import Timeline

_LINE = re.compile(r"^(?:paceline|vllm|sglang):(\w+?)(?:_total)?(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_RUNNING = ("num_requests_running", "num_running_reqs")
_WAITING = ("num_requests_waiting", "num_queue_reqs")
_KV = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage")
_COUNTERS = (
    *("num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "recomputed_tokens", "engine_restarts"),
    *("steps", "engine_busy_seconds"),
)
_GENERATED = ("generation_tokens",)


class Scraper:
    """Samples until it is cancelled; a server without metrics gives an empty timeline."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, clock: Callable[[], float]) -> None:
        self.timeline = Timeline()
        self._session, self._target, self._clock = session, target, clock
        self._first: dict[str, float] | None = None

    async def run(self, every: float) -> None:
        """Sample each `every` seconds, more rarely in a long run."""
        missed = 0
        while missed < 3:
            missed = 0 if await self.sample() else missed + 1
            await asyncio.sleep(every * (1 if len(self.timeline) < 1000 else 4))

    async def sample(self) -> bool:
        """One sample; False: there are no metrics to read."""
        try:
            timeout = aiohttp.ClientTimeout(total=5)
            url = f"{self._target.url}/metrics"
            async with self._session.get(url, headers=self._target.headers, timeout=timeout) as answer:
                page = await answer.text() if answer.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError, OSError):
            return False
        found: dict[str, float] = {}
        for name, value in _LINE.findall(page):
            found[name] = found.get(name, 0.0) + float(value)
        if not found:
            return False
        self._take(found)
        return True

    def _take(self, found: dict[str, float]) -> None:
        first = self._first = self._first or found
        line = self.timeline
        line.at.append(self._clock())
        line.running.append(_one(found, _RUNNING))
        line.waiting.append(_one(found, _WAITING))
        line.kv.append(_one(found, _KV))
        line.generated.append(_one(found, _GENERATED) - _one(first, _GENERATED))
        line.counters = {name: found[name] - first.get(name, 0.0) for name in _COUNTERS if name in found}


def _one(found: dict[str, float], names: tuple[str, ...]) -> float:
    return next((found[name] for name in names if name in found), 0.0)
