"""A run: what was asked of a system, real or simulated, and what came of it. Tables and reports show runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.workload.export import result
from paceline.workload.metrics import Summary
from paceline.workload.records import Records


@dataclass
class Timeline:
    """The system from inside, sampled: columns of equal length. Empty where it does not tell."""

    at: list[float] = field(default_factory=list)
    """Seconds on the records' clock."""
    running: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    kv: list[float] = field(default_factory=list)
    """Share of the KV blocks that sequences hold, 0 to 1."""
    generated: list[float] = field(default_factory=list)
    """Output tokens so far."""
    counters: dict[str, float] = field(default_factory=dict)
    """Totals over the run, such as preemptions and prefix hit tokens."""

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True)
class Finding:
    """Something a reader must know before believing the figures."""

    level: str
    """`invalid` (do not use these figures), `warning` or `note`."""
    text: str


@dataclass
class Run:
    """One load on one system."""

    label: str
    loop: str
    """`open` (requests come when they come) or `closed` (a fixed number at a time)."""
    workload: str
    """What was sent, in words."""
    arrivals: str
    records: Records
    summary: Summary
    rate: float = float("inf")
    """Requests per second asked for; inf: all at once, or a closed loop."""
    concurrency: int | None = None
    timeline: Timeline = field(default_factory=Timeline)
    facts: dict[str, Any] = field(default_factory=dict)
    """Where and with what: model, server, client, seed, attribution. Shown as they are."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return all(finding.level != "invalid" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Under the names vLLM's benchmark uses, then ours."""
        rate: Any = "inf" if self.rate == float("inf") else self.rate
        return {
            "label": self.label,
            **self.facts,
            "loop": self.loop,
            "workload": self.workload,
            "arrivals": self.arrivals,
            "request_rate": rate,
            "max_concurrency": self.concurrency,
            "num_prompts": len(self.records),
            **result(self.summary, self.records),
            "valid": self.valid,
            "findings": [{"level": finding.level, "text": finding.text} for finding in self.findings],
            "server_counters": self.timeline.counters,
        }
