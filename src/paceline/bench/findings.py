"""What a reader must know before believing a run: said aloud beside the figures, never left to be found out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from paceline.workload.arrivals import dispersion, gap_cv
from paceline.workload.metrics import Stretch
from paceline.workload.run import Finding, Run

if TYPE_CHECKING:
    from paceline.bench.load import ClientReport

MAX_LATENESS = 0.25
"""Seconds: a 99th percentile of send lateness above this makes an open-loop run invalid."""
MAX_RATE_ERROR = 0.05


def invalid(text: str) -> Finding:
    return Finding("invalid", text)


def warning(text: str) -> Finding:
    return Finding("warning", text)


def note(text: str) -> Finding:
    return Finding("note", text)


def client_findings(run: Run, client: ClientReport, max_lateness: float = MAX_LATENESS) -> list[Finding]:
    """Whether the client did what it was asked to do."""
    found = []
    whole = run.summary.whole
    late = whole.lateness.at(99.0)
    capped = run.concurrency is not None and run.loop == "open"
    if run.loop == "open" and not math.isnan(late) and late > max_lateness:
        where = (
            f"the limit of {run.concurrency} at a time held them back; TTFT and E2E count from when they were due"
            if capped
            else "the client could not keep up; use a faster machine, or a lower rate"
        )
        kind = warning if capped else invalid
        found.append(kind(f"1 % of the requests were sent {late:.2f} s late or more: {where}"))
    if run.loop == "open" and not capped and (off := rate_error(run)) is not None and abs(off) > MAX_RATE_ERROR:
        found.append(
            invalid(f"the achieved rate is {off:+.0%} off what was asked for: these are figures of the client")
        )
    if client.cpu_share > 0.8:
        found.append(warning(f"the client used {client.cpu_share:.0%} of a CPU: it may be the bottleneck"))
    if client.loop_lag_p99 > 0.05:
        found.append(
            warning(
                f"the client woke {client.loop_lag_p99 * 1e3:.0f} ms late (p99): its latencies are that much too long"
            )
        )
    if client.unsent:
        found.append(warning(f"{client.unsent} requests were never due or sent before the end of the run; not counted"))
    for message, count in client.errors.most_common(5):
        found.append(warning(f"{count} requests failed: {message}"))
    if not whole.outcomes["ok"]:
        found.append(invalid("no request succeeded"))
    if client.prompt_disagreements:
        found.append(
            note(
                f"the server counted other prompt tokens than intended in {client.prompt_disagreements} requests (a "
                "chat template, or text whose words are not one token each); its counts are used"
            )
        )
    if client.short_outputs:
        found.append(
            warning(f"{client.short_outputs} answers are shorter than asked for: lengths differ from the workload's")
        )
    if client.uncounted:
        found.append(warning(f"{client.uncounted} answers were counted in chunks: the server reports no token usage"))
    if client.tokens_per_chunk > 1.05:
        found.append(
            note(
                f"chunks hold {client.tokens_per_chunk:.2f} tokens on average: ITL is the gap between chunks, "
                "TPOT counts every token"
            )
        )
    return found


def rate_error(run: Run) -> float | None:
    """Relative error of the rate at which requests were sent; None: there is none to check."""
    records = run.records
    sent = records.sent[~np.isnan(records.sent)]
    if sent.size < 10:
        return None
    due, took = float(np.ptp(records.scheduled)), float(np.ptp(sent))
    return None if due <= 0 else due / max(took, 1e-9) - 1


def load_findings(run: Run) -> list[Finding]:
    """What kind of load it was, and what that does to the figures."""
    found = []
    records, whole, steady = run.records, run.summary.whole, run.summary.steady
    if run.loop == "closed":
        found.append(
            note(
                f"closed loop of {run.concurrency}: the next request waits for an answer, so a slow server is asked "
                "less often and its queue never shows; do not compare with open-loop figures"
            )
        )
    elif np.ptp(records.scheduled) == 0:
        found.append(warning("all requests came at once: TTFT is mostly the time spent in the queue this made"))
    else:
        found += _arrival_findings(run)
    count = whole.outcomes["ok"]
    if 0 < count < 1000:
        found.append(
            note(f"p99 rests on {max(count // 100, 1)} of {count} requests, p99.9 on one at most: read their intervals")
        )
    if not steady.window.settled:
        found.append(warning("the run is too short for a steady state: start-up and drain are in these figures"))
    label = run.summary.stability.label
    if label in ("backlogged", "overloaded"):
        grew = f"the number in flight grew by {run.summary.stability.in_flight_slope * 60:.3g} a minute"
        found.append(warning(f"{label}: {grew}; latencies of a longer run would be longer, without limit"))
    found += _little_findings(steady)
    found += _length_findings(run)
    return found


def _arrival_findings(run: Run) -> list[Finding]:
    at = run.records.scheduled
    cv, bursts = gap_cv(at), dispersion(at, max(float(np.ptp(at)) / 30, 1e-3))
    found = []
    uneven = (not math.isnan(cv) and cv > 1.5) or (not math.isnan(bursts) and bursts > 3)
    if uneven and "Poisson" not in run.arrivals:
        found.append(
            note(
                f"arrivals are not Poisson: gaps vary {cv:.1f} times their mean, counts are {bursts:.1f} times more "
                "dispersed; a Poisson load of this rate would look better"
            )
        )
    if run.arrivals.startswith(("Poisson", "constant")):
        kind = run.arrivals.split(",")[0]
        found.append(
            note(f"arrivals are {kind} by assumption; real traffic is burstier: replay a trace before planning")
        )
    return found


def _little_findings(steady: Stretch) -> list[Finding]:
    law = steady.little
    if abs(law.residual) <= 0.1 or not steady.window.settled:
        return []
    return [
        warning(
            f"Little's law is off by {law.residual:+.0%} in the steady window ({law.in_flight:.1f} in flight, rate x "
            f"time {law.product:.1f}): the load was not steady"
        )
    ]


def _length_findings(run: Run) -> list[Finding]:
    """Long and short requests mixed: what it does to the short ones."""
    ok = run.records.select(run.records.ok)
    if len(ok) < 30:
        return []
    cost = ok.prompt_tokens + ok.output_tokens
    low, high = np.percentile(cost, [25, 90])
    if high < 8 * low:
        return []
    short, rest = ok.ttft[cost <= low], ok.ttft[cost > low]
    worst, other = float(np.percentile(short, 99)), float(np.percentile(rest, 99))
    text = (
        f"lengths differ {high / max(low, 1):.0f}-fold: p99 TTFT of the shortest quarter is {worst:.2f} s, "
        f"of the rest {other:.2f} s"
    )
    if worst > 0.8 * other:
        return [
            warning(text + "; short requests wait behind long ones: an order such as sjf or hrrn, or chunks, helps")
        ]
    return [note(text)]


def server_findings(run: Run, intended_share: float) -> list[Finding]:
    """What the server's own counters say. `intended_share`: prompt tokens an endless prefix cache would have held."""
    found = []
    whole, counters = run.summary.whole, run.timeline.counters
    told = whole.cached_tokens
    share = None if told is None else told / max(whole.input_tokens, 1)
    if share is not None and (share > 0.01 or intended_share > 0.01):
        text = f"prefix cache: held {share:.0%} of the prompt tokens; the workload shares {intended_share:.0%}"
        if share > intended_share + 0.1:
            found.append(warning(text + ": it was warm before the run, or other traffic shares these prompts"))
        elif intended_share > 0.2 and share < 0.3 * intended_share:
            found.append(warning(text + ": it is off, or too small for this traffic"))
        else:
            found.append(note(text))
    elif share is None and intended_share > 0.2:
        found.append(
            note(
                f"the workload shares {intended_share:.0%} of its prompt tokens; the server does not say what it reused"
            )
        )
    preempted = counters.get("num_preemptions", 0.0)
    if preempted:
        each = preempted / max(len(run.records), 1)
        kind = warning if each > 0.05 else note
        found.append(
            kind(f"{preempted:.0f} preemptions ({each * 1000:.0f} per 1,000 requests): KV was full, headroom helps")
        )
    if counters.get("engine_restarts"):
        found.append(invalid(f"the engine was started {counters['engine_restarts']:.0f} times again during the run"))
    found += _queue_findings(run)
    return found + _tenant_findings(run)


def _queue_findings(run: Run) -> list[Finding]:
    line, window = run.timeline, run.summary.steady.window
    inside = [i for i, at in enumerate(line.at) if window.begin <= at <= window.end]
    if len(inside) < 10:
        return []
    if len(inside) < window.length / 2:
        return [note("the server's gauges answered less than every 2 s: it tells nothing of itself during a long step")]
    server = float(np.mean([line.running[i] + line.waiting[i] for i in inside]))
    client = run.summary.steady.little.in_flight
    if abs(server - client) <= max(0.15 * client, 1.0):
        return [note(f"in flight by the client {client:.1f}, by the server's own gauges {server:.1f}: they agree")]
    return [
        warning(
            f"in flight by the client {client:.1f}, by the server's own gauges {server:.1f}: time is lost between "
            "them, or others use the server too"
        )
    ]


def _tenant_findings(run: Run) -> list[Finding]:
    tenants = {name: one for name, one in run.summary.per_tenant.items() if one.outcomes["ok"] >= 10}
    if len(tenants) < 2:
        return []
    worst = max(tenants, key=lambda name: tenants[name].ttft.at(95.0))
    best = min(tenants, key=lambda name: tenants[name].ttft.at(95.0))
    high, low = tenants[worst].ttft.at(95.0), tenants[best].ttft.at(95.0)
    if high < 2 * low:
        return []
    return [note(f"p95 TTFT is {high:.2f} s for tenant {worst or '-'} and {low:.2f} s for {best or '-'}")]
