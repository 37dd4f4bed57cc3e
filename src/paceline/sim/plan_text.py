"""A plan in words, as a table for people and as plain values for programs."""

from __future__ import annotations

from typing import Any

from paceline import __version__
from paceline.sim.candidates import why_not
from paceline.sim.capacity import Target, Trial
from paceline.sim.cluster_size import PART
from paceline.sim.planner import Plan
from paceline.workload.export import clean, distribution_values
from paceline.workload.percentiles import Percentile

Rows = list[tuple[str, str]]


def sections(plan: Plan) -> list[tuple[str, Rows]]:
    """Title and (name, value) rows, in the order to be read."""
    return [
        ("Answer", _answer(plan)),
        ("One replica", _replica(plan)),
        ("The recommended cluster, simulated", _cluster(plan)),
        ("KV cache", _kv(plan)),
        ("Cost", _cost(plan)),
        ("What if", _what_ifs(plan)),
        ("Where this comes from", _provenance(plan)),
    ]


def latency_rows(plan: Plan) -> list[list[str]]:
    """Header and rows of latency against rate, for one replica: p50, p95 and p99."""
    rows = [["requests/s", "TTFT ms", "TPOT ms", "E2E s", "state"]]
    for one in plan.curve:
        stretch = one.stretch
        columns = [
            "/".join(f"{getattr(stretch, name).at(percent) * scale:.{digits}f}" for percent in (50.0, 95.0, 99.0))
            for name, scale, digits in (("ttft", 1e3, 0), ("tpot", 1e3, 1), ("e2e", 1.0, 1))
        ]
        label = one.summary.stability.label + (" <- knee" if one.rate == plan.best.capacity.rate else "")
        rows.append([f"{one.rate:.2f}", *columns, label])
    return rows


def throughput_rows(plan: Plan) -> list[list[str]]:
    """Header and rows of what a replica does at these rates: the speed for one user against the output of a device."""
    rows = [["requests/s", "good", "in flight", "tokens/s a user", "tokens/s a device"]]
    for one in plan.curve:
        stretch = one.stretch
        good = f"{stretch.goodput.share:.1%}" if stretch.goodput else ""
        user = f"{1 / stretch.tpot.median:.0f}" if stretch.tpot.median else ""
        device = f"{stretch.output_rate / plan.best.deployment.tensor_parallel:.0f}"
        rows.append([f"{one.rate:.2f}", good, f"{stretch.little.in_flight:.1f}", user, device])
    return rows


def _answer(plan: Plan) -> Rows:
    question, degree = plan.question, plan.best.deployment.tensor_parallel
    rows = [
        ("replicas", f"{plan.replicas} of {plan.best.name}" + (f", and {plan.spares} to spare" if plan.spares else "")),
        ("devices", f"{plan.devices}" + (f" ({degree} a replica)" if degree > 1 else "")),
        ("for", f"{question.rate:g} requests/s with " + ", ".join(map(str, question.targets))),
        ("price", f"{plan.price:,.2f} $/h"),
    ]
    if question.step_error:
        spread = f"{plan.low} to {plan.high or 'none'}"
        rows.insert(1, ("interval", f"{spread} replicas if steps are {question.step_error:.0%} shorter or longer"))
    return rows


def _replica(plan: Plan) -> Rows:
    best, error = plan.best, plan.question.step_error
    interval = f" ({plan.capacity_low:.2f} to {plan.capacity_high:.2f} with steps +-{error:.0%})" if error else ""
    return [
        ("capacity (knee)", f"{best.capacity.rate:.2f} requests/s{interval}"),
        ("saturation", f"{best.saturation:.2f} requests/s, whatever the latency"),
        ("binding limit", plan.binding),
        ("scheduling", plan.question.knobs.describe()),
    ]


def _cluster(plan: Plan) -> Rows:
    chosen, law = plan.chosen, plan.little
    rows = [
        (f"{target.metric.upper()} p{target.percent:g}", _reached(chosen, target))
        for target in plan.question.targets
    ]  # fmt: skip
    good = chosen.stretch.goodput
    if plan.replicas > PART:
        lasts = f"the size is judged by {PART} replicas with their share of the traffic, in a longer run"
        rows.append(("note", lasts))
    rows += [
        ("good requests", f"{good.share:.2%} of {chosen.stretch.total:,} in the steady part" if good else ""),
        ("state", chosen.summary.stability.label),
        ("Little's law", f"{law.in_flight:.1f} in flight, rate x time {law.product:.1f} ({law.residual:+.2%})"),
    ]
    if plan.one_less is not None:
        missed = plan.one_less.missed
        text = ", ".join(
            f"{t.metric.upper()} p{t.percent:g} {t.value(plan.one_less.stretch) * 1e3:.4g} ms" for t in missed
        )
        rows.append((f"with {plan.replicas - 1}", f"misses: {text or why_not(plan.one_less)}"))
    return rows


def _reached(trial: Trial, target: Target) -> str:
    found: Percentile | None = getattr(trial.stretch, target.metric).percentiles.get(target.percent)
    if found is None:
        return "no sample"
    low = "?" if found.low is None else f"{found.low * 1e3:.4g}"
    high = "?" if found.high is None else f"{found.high * 1e3:.4g}"
    return f"{found.value * 1e3:.4g} ms [{low}, {high}] (limit {target.seconds * 1e3:g})"


def _kv(plan: Plan) -> Rows:
    run = plan.chosen.run
    usage, config = run.usage, plan.best.spec.config
    tokens = config.num_blocks * config.block_size
    stretch = plan.chosen.stretch
    count = max(stretch.outcomes["ok"], 1)
    held = (stretch.input_tokens + stretch.output_tokens / 2) / count
    return [
        ("capacity", f"{tokens:,} tokens a replica: about {tokens / max(held, 1):.0f} sequences of {held:.0f} tokens"),
        ("use", f"mean {usage.kv / max(usage.seconds, 1e-9):.0%}, p99 {usage.kv_percentile(99):.0%}"),
        ("running", f"mean {usage.running / max(usage.seconds, 1e-9):.1f} of {config.max_num_seqs} a replica"),
        ("preemptions", f"{run.preemptions_per_thousand:.2f} per 1,000 requests"),
        ("prefix hits", f"{run.hit_rate:.1%} of the prompt tokens, with this cache"),
    ]


def _cost(plan: Plan) -> Rows:
    per_hour = plan.best.deployment.hardware.price_per_hour
    rows = [
        ("per million output", f"{plan.cost_per_million_output:.3f} $ at the planned rate, good requests only"),
        ("per million total", f"{plan.cost_per_million_total:.3f} $ (prompt and answer tokens)"),
        ("price used", f"{per_hour:g} $/h for a {plan.best.deployment.hardware.name}; give your own with --price"),
    ]
    for other in plan.others:
        ratio = other.price_per_request / plan.best.price_per_request
        rows.append((other.name, f"{other.capacity.rate:.2f} requests/s a replica, {ratio:.2f} times the cost"))
    return rows + [("cannot do it", text) for text in plan.refused]


def _what_ifs(plan: Plan) -> Rows:
    rows = []
    for case in plan.what_ifs:
        text = f"{case.rate:.2f} requests/s a replica, about {case.replicas} replicas, {case.price:,.2f} $/h"
        rows.append((case.change, text if case.rate else "does not meet the targets"))
    return rows


def _provenance(plan: Plan) -> Rows:
    question = plan.question
    kv = "given" if question.kv_tokens is not None else "reckoned from memory, weights and token budget"
    profile = plan.profile
    rows = [
        ("traffic", question.traffic.describe()),
        ("seed", str(question.traffic.seed)),
        ("step times", f"analytic, {profile.name} ({profile.source}; TPOT error {profile.error:.0%} on unseen points)"),
        ("KV capacity", kv),
        ("simulated", f"{len(plan.chosen.run.records):,} requests on the cluster, {question.trial_requests:,} a trial"),
        ("router", question.router),
        ("made by", f"paceline {__version__} in {plan.seconds:.0f} s"),
    ]
    if question.traffic.workload.attribution:
        rows.append(("data", question.traffic.workload.attribution))
    return rows


def values(plan: Plan) -> dict[str, Any]:
    """Everything, for a JSON file."""
    stretch = plan.chosen.stretch
    return clean(
        {
            "replicas": plan.replicas,
            "replicas_interval": [plan.low, plan.high or None],
            "spares": plan.spares,
            "devices": plan.devices,
            "deployment": plan.best.name,
            "rate": plan.question.rate,
            "targets": [str(target) for target in plan.question.targets],
            "capacity": plan.best.capacity.rate,
            "capacity_interval": [plan.capacity_low, plan.capacity_high],
            "saturation": plan.best.saturation,
            "binding_limit": plan.binding,
            "price_per_hour": plan.price,
            "cost_per_million_output_tokens": plan.cost_per_million_output,
            "cost_per_million_total_tokens": plan.cost_per_million_total,
            "cluster": {
                "ttft_ms": distribution_values(stretch.ttft),
                "tpot_ms": distribution_values(stretch.tpot),
                "e2e_ms": distribution_values(stretch.e2e),
                "goodput_share": stretch.goodput.share if stretch.goodput else None,
                "stability": plan.chosen.summary.stability.label,
                "preemptions_per_1000": plan.chosen.run.preemptions_per_thousand,
                "prefix_hit_rate": plan.chosen.run.hit_rate,
                "kv_p99": plan.chosen.run.usage.kv_percentile(99),
            },
            "little": {
                "in_flight": plan.little.in_flight,
                "rate_times_time": plan.little.product,
                "residual": plan.little.residual,
            },
            "curve": [
                {
                    "rate": one.rate,
                    "meets": one.meets,
                    "stability": one.summary.stability.label,
                    "ttft_ms": distribution_values(one.stretch.ttft),
                    "tpot_ms": distribution_values(one.stretch.tpot),
                    "e2e_ms": distribution_values(one.stretch.e2e),
                    "tokens_per_second_per_user": 1 / one.stretch.tpot.median if one.stretch.tpot.median else None,
                    "tokens_per_second_per_device": one.stretch.output_rate / plan.best.deployment.tensor_parallel,
                }
                for one in plan.curve
            ],
            "what_ifs": [vars(case) for case in plan.what_ifs],
            "refused": plan.refused,
            "provenance": dict(_provenance(plan)),
        }
    )
