"""`paceline plan`: how much of what is needed. No model is loaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from paceline.cli.flag_sets import command, flag
from paceline.cli.limits import LimitFlags
from paceline.cli.numbers import Span
from paceline.cli.outputs import check_file, check_page
from paceline.cli.replica_flags import DeploymentFlags, KnobFlags
from paceline.cli.workload_flags import WorkloadFlags, build, request_rate
from paceline.errors import ConfigError, PacelineError


@dataclass(frozen=True)
class PlanFlags(LimitFlags):
    """What must hold."""

    availability: Annotated[
        float, flag("Share of the time the targets must hold though replicas fail."), Span(0, below=1)
    ] = 0.0
    replica_availability: Annotated[float, flag("Share of the time a replica is up."), Span(above=0, most=1)] = 0.99
    step_error: Annotated[float, flag("How far off step times may be, as a share."), Span(0, below=1)] = 0.10
    trial_requests: Annotated[int, flag("Requests of each simulated rate."), Span(100, 10**7)] = 3000
    tune: Annotated[bool, flag("Search the knobs for --gpus devices instead.", "--tune")] = False
    gpus: Annotated[int, flag("Devices to tune for."), Span(1, 10**5)] = 1
    what_if: Annotated[bool, flag("Try changes of one thing.", "--what-if/--no-what-if")] = True
    result: Annotated[Path | None, flag("Write the plan as JSON.")] = None
    html: Annotated[Path | None, flag("Write the Pareto plot and the curve.")] = None
    processes: Annotated[
        int, flag("Simulations beside each other; 0: as many as there are processors."), Span(0, 4096)
    ] = 0
    quiet: Annotated[bool, flag("No progress lines.", "--quiet")] = False


@command(WorkloadFlags, DeploymentFlags, KnobFlags, PlanFlags)
def plan(traffic: WorkloadFlags, where: DeploymentFlags, how: KnobFlags, flags: PlanFlags) -> int:
    """How many of which device for this traffic and these targets."""
    from paceline.bench import terminal
    from paceline.sim import planner
    from paceline.sim.capacity import Target, Traffic
    from paceline.sim.plan_text import values
    from paceline.sim.question import Question

    console = terminal.console()
    check_file("--result", flags.result)
    check_page("--html", flags.html)
    limits = tuple(Target(*limit) for limit in flags.limits())
    if not limits:
        raise PacelineError(
            "a plan needs a target; give --ttft-p99 500ms, or --tpot-p99, --e2e-p99, --goodput or --target"
        )
    rate = None if traffic.request_rate is None else request_rate(traffic.request_rate)
    # The rate is one of the trials', which stretch the workload's own times, whatever process they are of.
    workload, own_rate = build(replace(traffic, request_rate=None))
    arrivals = "poisson" if traffic.arrivals == "poisson" else "trace"
    question = Question(
        Traffic(workload, arrivals, traffic.seed),
        where.deployments(),
        limits,
        own_rate if rate is None else rate,
        how.knobs(),
        where.engine,
        how.router,
        flags.step_error,
        flags.availability,
        flags.replica_availability,
        where.kv_tokens,
        flags.trial_requests,
        flags.what_if,
    )

    def progress(text: str) -> None:
        if not flags.quiet:
            console.print(text, style="dim", markup=False)

    processes = flags.processes or os.cpu_count() or 1
    if flags.tune:
        return _tune(console, question, flags, processes, progress)
    answer = planner.plan(question, progress, processes)
    _print_plan(console, answer)
    if flags.result is not None:
        flags.result.write_text(json.dumps(values(answer), indent=1) + "\n", encoding="utf-8")
        console.print(f"plan: {flags.result}", markup=False)
    if flags.html is not None:
        _write_plots(flags.html, answer)
        console.print(f"plots: {flags.html}", markup=False)
    return 0


def _tune(console: Any, question: Any, flags: PlanFlags, processes: int, progress: Any) -> int:
    from paceline.bench.terminal import WholeTable
    from paceline.sim.question import PlanError, name_of
    from paceline.sim.tuning import tune
    from paceline.sim.workers import Workers

    with Workers(processes) as workers:
        ranked = tune(question, flags.gpus, progress, workers=workers)
    if not ranked or ranked[0][2] <= 0:
        raise PlanError(f"no setting that was tried meets the targets on {flags.gpus} devices")
    table = WholeTable(
        "requests/s", "replica", "knobs", title=f"knobs for {flags.gpus} devices, best first", words=(1, 2)
    )
    for knobs, deployment, rate in ranked[:12]:
        table.add_row(f"{rate:.2f}", name_of(deployment), knobs.describe())
    console.print(table)
    return 0


def _print_plan(console: Any, answer: Any) -> None:
    from paceline.bench.tables import plain
    from paceline.bench.terminal import WholeTable
    from paceline.sim.plan_text import latency_rows, sections, throughput_rows

    for title, rows in sections(answer):
        if not rows:
            continue
        table = WholeTable("", "", title=title, words=(1,), header=False)
        for name, value in rows:
            table.add_row(plain(f"{name:20}"), plain(value))
        console.print(table)
        console.print()
        if title == "One replica":
            caption = "One replica: latency against rate, p50/p95/p99"
            for title, (header, *body) in ((caption, latency_rows(answer)), ("", throughput_rows(answer))):
                table = WholeTable(*map(plain, header), title=title, words=range(1, len(header)))
                for row in body:
                    table.add_row(*map(plain, row))
                console.print(table)
                console.print()


def _write_plots(path: Path, answer: Any) -> None:
    try:
        from plotly import graph_objects as plots
        from plotly.subplots import make_subplots
    except ModuleNotFoundError:
        raise ConfigError("--html", str(path), "left out: plots need plotly; pip install 'paceline[bench]'") from None
    figure = make_subplots(
        rows=1, cols=2, subplot_titles=("Speed for one against output of all", "Latency against rate")
    )
    degree, curve = answer.best.deployment.tensor_parallel, answer.curve
    figure.add_trace(
        plots.Scatter(
            x=[1 / one.stretch.tpot.median for one in curve],
            y=[one.stretch.output_rate / degree for one in curve],
            text=[f"{one.rate:.2f} requests/s" for one in curve],
            mode="lines+markers",
            name=answer.best.name,
        ),
        1,
        1,
    )
    for name in ("ttft", "tpot"):
        figure.add_trace(
            plots.Scatter(
                x=[one.rate for one in curve],
                y=[getattr(one.stretch, name).at(99.0) * 1e3 for one in curve],
                mode="lines+markers",
                name=f"{name.upper()} p99 ms",
            ),
            1,
            2,
        )
    figure.update_xaxes(title="tokens/s/user", row=1, col=1)
    figure.update_yaxes(title="tokens/s/device", row=1, col=1)
    figure.update_xaxes(title="requests/s a replica", row=1, col=2)
    figure.update_yaxes(title="ms", type="log", row=1, col=2)
    path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
