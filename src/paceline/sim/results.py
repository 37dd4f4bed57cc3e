"""A simulated run in the form that reports, tables and JSON files show any run."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.sim.capacity import whole_window
from paceline.sim.cluster import Run as SimulatedRun
from paceline.workload.metrics import little, summarise
from paceline.workload.percentiles import PERCENTILES
from paceline.workload.records import Outcome
from paceline.workload.requests import Workload, WorkloadError
from paceline.workload.run import Finding, Run, Timeline

_POINTS = 400


def as_run(
    simulated: SimulatedRun,
    workload: Workload,
    label: str,
    targets: dict[str, float],
    percents: tuple[float, ...] = PERCENTILES,
    facts: dict[str, Any] | None = None,
) -> Run:
    """Metrics over the run's records, and what its reader must know."""
    if not len(simulated.records):
        raise WorkloadError(f"{workload.name}: no request was ever due")
    usage = simulated.usage
    law = little(simulated.records, whole_window(simulated))
    run = Run(
        label=label,
        loop="open",
        workload=workload.describe(),
        arrivals=workload.arrivals,
        records=simulated.records,
        summary=summarise(simulated.records, targets or None, percents),
        rate=(len(workload) - 1) / workload.duration if workload.duration > 0 else float("inf"),
        timeline=timeline(simulated),
        facts={
            "backend": "simulation",
            "replicas": simulated.replicas,
            "steps": usage.steps,
            "preemptions_per_1000": round(simulated.preemptions_per_thousand, 3),
            "prefix_hit_rate": round(simulated.hit_rate, 4),
            "kv_tokens": simulated.spec.config.num_blocks * simulated.spec.config.block_size,
            "kv_mean": round(usage.kv / max(usage.seconds, 1e-9), 4),
            "kv_p99": usage.kv_percentile(99),
            "mean_running": round(usage.running / max(usage.seconds, 1e-9), 2),
            "little_whole_run": {"in_flight": law.in_flight, "rate_times_time": law.product},
            **({"attribution": workload.attribution} if workload.attribution else {}),
            **(facts or {}),
        },
    )
    run.findings += [Finding("warning", text) for text in simulated.notes]
    run.findings += [Finding("note", text) for text in workload.notes]
    lost = int((simulated.records.outcome != Outcome.OK).sum())
    if lost:
        run.findings.append(Finding("warning", f"{lost} of {len(simulated.records)} requests did not end well"))
    if abs(law.residual) > 0.02:
        run.findings.append(Finding("warning", f"Little's law is off by {law.residual:.1%}: some requests never ended"))
    if run.summary.stability.label == "unknown":
        run.findings.append(Finding("note", "too few requests to tell whether the system keeps up"))
    elif run.summary.stability.label != "stable":
        run.findings.append(Finding("warning", f"the system is {run.summary.stability.label}: it falls behind"))
    return run


def timeline(simulated: SimulatedRun) -> Timeline:
    """All replicas together, at even times."""
    found = Timeline(counters={name: float(value) for name, value in simulated.counters.items()})
    if simulated.end <= 0:
        return found
    at = np.linspace(0.0, simulated.end, _POINTS)
    columns = np.zeros((4, _POINTS))
    for usage in simulated.usages:
        if not usage.samples:
            continue
        table = usage.table
        where = np.searchsorted(table[:, 0], at, "right") - 1
        known = where >= 0
        columns[:, known] += table[where[known], 1:].T
    found.at = at.tolist()
    found.running, found.waiting = columns[0].tolist(), columns[1].tolist()
    found.kv = (columns[2] / max(len(simulated.usages), 1)).tolist()
    found.generated = columns[3].tolist()
    return found
