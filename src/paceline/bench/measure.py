"""One workload on one server: from the options to a run with its figures and findings."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from paceline import __version__
from paceline.bench.bodies import prepare
from paceline.bench.calibration import client_overhead
from paceline.bench.client import send
from paceline.bench.findings import MAX_LATENESS, client_findings, load_findings, note, server_findings
from paceline.bench.load import Load, LoadOptions, LoadResult, Progress
from paceline.bench.target import Target, discover, open_session
from paceline.workload.metrics import summarise
from paceline.workload.percentiles import PERCENTILES
from paceline.workload.requests import TimedRequest, Workload, WorkloadError
from paceline.workload.run import Run
from paceline.workload.synthetic import shared_tokens

_NEXT_PROMPTS = 1_000_003

Watch = Callable[[Progress, Workload], Any]


@dataclass(frozen=True)
class MeasureOptions:
    """Everything but the workload."""

    load: LoadOptions = field(default_factory=LoadOptions)
    targets: dict[str, float] = field(default_factory=dict)
    """Goodput limits in seconds."""
    percentiles: tuple[float, ...] = PERCENTILES
    warmups: int = 2
    """Requests sent one by one before the run, and not counted."""
    timeout: float = 600.0
    max_lateness: float = MAX_LATENESS
    metadata: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    def with_prompts(self, number: int) -> MeasureOptions:
        """The same with other prompts of the same lengths, by a number from 0 on: a server that has answered the first
        has them in its cache."""
        style = replace(self.load.style, seed=self.load.style.seed + _NEXT_PROMPTS * number)
        return replace(self, load=replace(self.load, style=style))


async def measure(
    target: Target, workload: Workload, options: MeasureOptions, rate: float = float("inf"), watch: Watch | None = None
) -> Run:
    """A run. BenchError where the server cannot be used, WorkloadError where the workload does not fit it.

    `watch` gets the progress as the load begins, and returns a context manager around it (a display).
    """
    async with open_session(options.timeout) as session:
        target = await discover(session, target)
        check_fits(workload, target)
        overhead = await client_overhead()
        for number in range(options.warmups):
            body = prepare(target, _warmup(workload, number), options.load.style, options.load.sampling)
            await send(session, target, body)
        load = Load(session, target, workload, options.load)
        started = datetime.datetime.now(datetime.timezone.utc)
        if watch is None:
            done = await load.run()
        else:
            with watch(load.progress, workload):
                done = await load.run()
    if len(done.records) == 0:
        raise WorkloadError("the run ended before any request did")
    return make_run(target, workload, options, rate, done, started.isoformat(timespec="seconds"), overhead)


def make_run(
    target: Target,
    workload: Workload,
    options: MeasureOptions,
    rate: float,
    done: LoadResult,
    started: str,
    overhead: float,
) -> Run:
    """Figures and findings of what came back."""
    summary = summarise(done.records, options.targets, options.percentiles)
    run = Run(
        label=options.label or target.model,
        loop="closed" if options.load.closed else "open",
        workload=workload.describe(),
        arrivals=f"closed loop of {options.load.concurrency}" if options.load.closed else workload.arrivals,
        records=done.records,
        summary=summary,
        rate=rate,
        concurrency=options.load.concurrency,
        timeline=done.timeline,
        facts={
            "date": started,
            "backend": "openai" if target.endpoint == "completions" else "openai-chat",
            "model_id": target.model,
            "tokenizer_id": target.model,
            "base_url": target.url,
            "server": target.version,
            "client": f"paceline {__version__} on {done.client.host}",
            "client_cpu": f"{done.client.cpu_share:.0%} of one CPU",
            "client_overhead_ms": round(overhead * 1e3, 3),
            "client_lag_p99_ms": round(done.client.loop_lag_p99 * 1e3, 3),
            "seed": options.load.style.seed,
            "prompts": "token ids" if target.token_ids else "text",
            "ignore_eos": target.ignore_eos,
            **({"attribution": workload.attribution} if workload.attribution else {}),
            **options.metadata,
        },
    )
    shared = shared_tokens(workload) / max(sum(done.prompt_lens), 1)
    run.findings += client_findings(run, done.client, options.max_lateness)
    run.findings += load_findings(run)
    run.findings += server_findings(run, shared)
    run.findings += [note(text) for text in workload.notes]
    return run


def check_fits(workload: Workload, target: Target) -> None:
    """WorkloadError where requests are longer than the model's context."""
    limit = target.max_model_len
    if limit is None:
        return
    long = [r for r in workload.requests if r.text is None and r.prompt_len + r.output_len > limit]
    if long:
        one = max(long, key=lambda request: request.prompt_len + request.output_len)
        raise WorkloadError(
            f"{workload.name}: {len(long)} of {len(workload)} requests are longer than {target.model}'s context of "
            f"{limit} tokens (request {one.id} needs {one.prompt_len} + {one.output_len}); leave them out with "
            f"--max-tokens {limit}, or shrink all lengths with --scale-lengths"
        )


def _warmup(workload: Workload, number: int) -> TimedRequest:
    """As long as a median request of the workload, and with a prompt of its own."""
    middle = sorted(workload.requests, key=lambda request: request.prompt_len)[len(workload) // 2]
    if middle.text is not None:
        return middle
    name, length = f"warm-up {number}", min(middle.prompt_len, 512)
    return TimedRequest(name, 0.0, length, min(middle.output_len, 16), parts=((-(1 << 40) - number, length),))


def run_blocking(work: Any) -> Any:
    """Run a coroutine on uvloop where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(work)
    return uvloop.run(work)
