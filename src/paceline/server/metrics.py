"""Prometheus metrics, named as vLLM's with the prefix `paceline:`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from paceline.engine.outputs import RequestOutput
from paceline.errors import RequestError
from paceline.server.prompts import PromptTokens

PREFIX = "paceline:"
OTHERS = "others"  # all tenants that the file of quotas does not name
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
_STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

# (name, help, where it stands in the engine's stats)
_ENGINE_COUNTERS = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", "prefix_query_tokens"),
    ("prefix_cache_hits", "Prompt tokens taken from the prefix cache", "prefix_hit_tokens"),
    ("num_preemptions", "Sequences taken off the batch before they were done", "preemptions"),
    ("displaced", "Of these, for a request of better priority", "displaced"),
    ("recomputed_tokens", "Tokens computed again after a preemption", "recomputed_tokens"),
    ("kv_swapped_out_blocks", "KV blocks of preempted sequences copied to the host", "swapped_out_blocks"),
    ("kv_swapped_in_blocks", "KV blocks of preempted sequences copied back", "swapped_in_blocks"),
    ("kv_demoted_blocks", "Evicted KV blocks copied to the host", "demoted_blocks"),
    ("kv_promoted_blocks", "KV blocks of a prefix copied back from the host", "promoted_blocks"),
    ("kv_disk_written_blocks", "KV blocks written to disk", "disk_written_blocks"),
    ("kv_disk_read_blocks", "KV blocks read from disk", "disk_read_blocks"),
    ("kv_disk_lost_blocks", "KV blocks that disk did not give back as they were, or did not take", "disk_lost_blocks"),
    ("scheduled_tokens", "Tokens processed by all steps", "scheduled_tokens"),
    ("steps", "Forward passes", "steps"),
    ("engine_busy_seconds", "Time the engine spent on steps", "busy_seconds"),
    ("engine_execute_seconds", "Of this, time spent in the model", "execute_seconds"),
    ("engine_restarts", "Engine processes started after a crash", "restarts"),
)


class Metrics:
    """One registry: what the server measures itself, and what it is told by the engine at each scrape."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self._engine = _EngineStats(model_name)
        self.registry.register(self._engine)
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Any:
            made = Counter(PREFIX + name, text, ("model_name", *labels), registry=self.registry)
            return made if labels else made.labels(model_name)

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(
                PREFIX + name, text, ("model_name",), registry=self.registry, buckets=tuple(buckets)
            ).labels(model_name)

        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts served")
        self.generation_tokens = counter("generation_tokens", "Tokens generated")
        self.request_success = counter("request_success", "Sequences ended, by reason", "finished_reason")
        self.refused = counter("refused", "Requests not let in, or too late before they started, by reason", "reason")
        self.tenant_requests = counter("tenant_requests", "Requests by tenant of the file of quotas", "tenant")
        self.tenant_prompt_tokens = counter("tenant_prompt_tokens", "Tokens of prompts served, by tenant", "tenant")
        self.tenant_generation_tokens = counter("tenant_generation_tokens", "Tokens generated, by tenant", "tenant")
        self.queue_time = histogram("request_queue_time_seconds", "From arrival to the first step", _SECONDS)
        self.time_to_first_token = histogram("time_to_first_token_seconds", "From arrival to the first token", _SECONDS)
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between two tokens of a sequence", _STEP_SECONDS
        )
        self.time_per_output_token = histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first", _STEP_SECONDS
        )
        self.e2e_latency = histogram("e2e_request_latency_seconds", "From arrival to the last token", _SECONDS)
        self.request_prompt_tokens = histogram("request_prompt_tokens", "Tokens of a prompt", _TOKENS)
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Tokens generated for a sequence", _TOKENS
        )

    def render(self, stats: dict[str, Any] | None) -> bytes:
        """The page a Prometheus server reads. `stats` None: the engine did not answer; its figures are left out."""
        self._engine.latest = stats
        return generate_latest(self.registry)


class _EngineStats(Collector):
    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.latest: dict[str, Any] | None = None

    def collect(self) -> Iterable[Metric]:
        stats = self.latest
        if not stats or "running" not in stats:
            return  # the engine is not there, or has not been asked before it went
        total = stats["blocks_total"]
        yield self._gauge("num_requests_running", "Sequences in the batch", stats["running"])
        yield self._gauge("num_requests_waiting", "Sequences waiting for their turn", stats["waiting"])
        yield self._gauge(
            "kv_cache_usage_perc", "Share of KV blocks that sequences hold", stats["blocks_held"] / max(total, 1)
        )
        blocks = GaugeMetricFamily(PREFIX + "kv_cache_blocks", "KV blocks by state", labels=("model_name", "state"))
        for state in ("free", "cached", "held"):
            blocks.add_metric((self.model_name, state), stats[f"blocks_{state}"])
        yield blocks
        below = GaugeMetricFamily(
            PREFIX + "kv_tier_blocks",
            "KV blocks below the device, by tier and state",
            labels=("model_name", "tier", "state"),
        )
        for tier, state in (("host", "swapped"), ("host", "cached"), ("disk", "cached")):
            below.add_metric((self.model_name, tier, state), stats.get(f"{tier}_{state}", 0))
        yield below
        pitfalls = CounterMetricFamily(
            PREFIX + "pitfalls", "Minutes in which a known pitfall was found, by name", labels=("model_name", "pitfall")
        )
        for name, count in stats.get("pitfalls", {}).items():
            pitfalls.add_metric((self.model_name, name), count)
        yield pitfalls
        for name, text, key in _ENGINE_COUNTERS:
            yield self._counter(name, text, stats.get(key, 0))

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=("model_name",))
        family.add_metric((self.model_name,), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=("model_name",))
        family.add_metric((self.model_name,), value)
        return family


class RequestWatch:
    """Measures one prompt's stream as the server sees it."""

    def __init__(self, metrics: Metrics, prompt: PromptTokens, n: int, tenant: str = "") -> None:
        self._metrics = metrics
        self._prompt_tokens = len(prompt.token_ids)
        self._start = time.perf_counter()
        self._first: list[float | None] = [None] * n
        self._last = [0.0] * n
        self._tokens = [0] * n
        self._open = set(range(n))
        self._seen = False
        self._tenant = (metrics.model_name, tenant or OTHERS)
        self._generated_by_tenant = metrics.tenant_generation_tokens.labels(*self._tenant)

    def note(self, output: RequestOutput) -> None:
        """Take in the next item of the stream."""
        now = time.perf_counter()
        metrics = self._metrics
        if not self._seen:
            self._seen = True
            metrics.prompt_tokens.inc(self._prompt_tokens)
            metrics.request_prompt_tokens.observe(self._prompt_tokens)
            metrics.tenant_requests.labels(*self._tenant).inc()
            metrics.tenant_prompt_tokens.labels(*self._tenant).inc(self._prompt_tokens)
            if output.queue_seconds is not None:
                metrics.queue_time.observe(output.queue_seconds)
        for delta in output.sequences:
            index, new = delta.index, len(delta.token_ids)
            if new:
                metrics.generation_tokens.inc(new)
                self._generated_by_tenant.inc(new)
                self._tokens[index] += new
                if self._first[index] is None:
                    self._first[index] = now
                    metrics.time_to_first_token.observe(now - self._start)
                else:
                    metrics.inter_token_latency.observe((now - self._last[index]) / new)
                self._last[index] = now
            if delta.finish_reason is not None:
                self._end(index, delta.finish_reason, now)

    def refused(self, error: RequestError) -> None:
        """It was not let in, or failed as a whole."""
        metrics = self._metrics
        metrics.refused.labels(metrics.model_name, str(error.code or "invalid_request")).inc()
        if not self._seen and error.code == "request_expired":
            for index in sorted(self._open):
                self._end(index, "expired", time.perf_counter())
        elif not self._seen:
            self._open.clear()

    def close(self) -> None:
        """The stream is over; sequences that did not finish were aborted."""
        for index in sorted(self._open):
            self._end(index, "abort", time.perf_counter())

    def _end(self, index: int, reason: str, now: float) -> None:
        if index not in self._open:
            return
        self._open.discard(index)
        metrics = self._metrics
        metrics.request_success.labels(metrics.model_name, reason).inc()
        if reason == "abort" or not self._seen:
            return
        metrics.e2e_latency.observe(now - self._start)
        metrics.request_generation_tokens.observe(self._tokens[index])
        first = self._first[index]
        if first is not None and self._tokens[index] > 1:
            metrics.time_per_output_token.observe((now - first) / (self._tokens[index] - 1))
