"""`paceline simulate` and `paceline plan`: what would happen, and how much of what is needed. Neither loads a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli.flag_sets import command, flag
from paceline.cli.workload_flags import WorkloadFlags, build
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.sim.latency import Deployment

_TARGETS = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e", "e2el": "e2e"}


@dataclass(frozen=True)
class DeploymentFlags:
    """The model and the device of a replica."""

    model: Annotated[str, flag("A known name, a config.json, or a directory with one.")] = "llama-3.1-8b"
    gpu: Annotated[str, flag("A device by name; for plan several, separated by commas.")] = "h100"
    tensor_parallel: Annotated[
        str, flag("Devices of a replica; for plan several, separated by commas.", "--tensor-parallel", "--tp")
    ] = "1"
    weights: Annotated[str, flag("bf16, fp8 or int4.")] = "bf16"
    kv_dtype: Annotated[str, flag("bf16 or fp8.")] = "bf16"
    price: Annotated[float | None, flag("Of a device, $/h; default: a round figure.")] = None
    engine: Annotated[str, flag("Whose step times: vllm, trtllm or roofline.")] = "vllm"
    kv_tokens: Annotated[int | None, flag("KV capacity of a replica as a real engine reports it.")] = None

    def deployments(self) -> tuple[Deployment, ...]:
        """Every device with every degree. ConfigError names the flag."""
        from paceline.sim.hardware import hardware
        from paceline.sim.latency import Deployment
        from paceline.sim.models import model

        sizes = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5}
        if self.weights not in sizes:
            raise ConfigError("--weights", self.weights, "one of " + ", ".join(sizes))
        if self.kv_dtype not in ("bf16", "fp16", "fp8"):
            raise ConfigError("--kv-dtype", self.kv_dtype, "bf16 or fp8")
        shape = model(self.model)
        found = []
        for name in self.gpu.split(","):
            gpu = hardware(name) if self.price is None else hardware(name).at_price(self.price)
            for text in self.tensor_parallel.split(","):
                if not text.strip().isdigit() or int(text) < 1:
                    raise ConfigError("--tensor-parallel", text, "a whole number of at least 1")
                found.append(Deployment(shape, gpu, int(text), sizes[self.weights], sizes[self.kv_dtype]))
        return tuple(found)


@dataclass(frozen=True)
class KnobFlags:
    """How a replica schedules."""

    discipline: Annotated[str, flag("How requests are scheduled; for simulate several, to compare.")] = "paceline"
    order: Annotated[str | None, flag("Who is next; default: the discipline's.")] = None
    max_num_batched_tokens: Annotated[int | None, flag("Most tokens of a step; default: the profile's, else 8192.")] = (
        None
    )
    max_num_seqs: Annotated[int | None, flag("Most sequences in the batch; default: the profile's, else 256.")] = None
    long_prefill_token_threshold: Annotated[int, flag("Most tokens of one prompt in a step; 0: no limit.")] = 0
    host_memory: Annotated[float, flag("GB of host memory for swapped KV.")] = 0.0
    gpu_memory_utilization: Annotated[float, flag("Share of a device's memory to use.")] = 0.9
    prefix_caching: Annotated[
        bool, flag("Reuse KV of prompts seen before.", "--enable-prefix-caching/--no-enable-prefix-caching")
    ] = True
    router: Annotated[str, flag("round-robin, least-load, power-of-two, prefix or session.")] = "least-load"

    def knobs(self, discipline: str | None = None, profiled: dict[str, Any] | None = None) -> Any:
        """`profiled`: what a profile says of the engine that was measured."""
        from paceline.sim.planner import Knobs

        usual = Knobs()
        profiled = profiled or {}
        return Knobs(
            discipline or self.discipline,
            self.order,
            profiled.get("max_num_batched_tokens", usual.token_budget)
            if self.max_num_batched_tokens is None
            else self.max_num_batched_tokens,
            profiled.get("max_num_seqs", usual.max_num_seqs) if self.max_num_seqs is None else self.max_num_seqs,
            self.long_prefill_token_threshold,
            self.host_memory,
            self.gpu_memory_utilization,
            self.prefix_caching,
        )


@dataclass(frozen=True)
class SimulateFlags:
    """The cluster, and what to do with the figures."""

    replicas: Annotated[int, flag("Replicas behind the router.")] = 1
    profile: Annotated[Path | None, flag("Measured step times, made by `paceline profile`.")] = None
    fault: Annotated[
        list[str] | None, flag("SECONDS:REPLICA:dies, :returns or :slows:FACTOR; may be given several times.")
    ] = None
    goodput: Annotated[list[str] | None, flag("Targets in ms, such as ttft:500 tpot:50; several times.")] = None
    percentiles: Annotated[str, flag("Which to report.")] = "50,90,95,99,99.9"
    label: Annotated[str | None, flag("A name for the run.")] = None
    result: Annotated[Path | None, flag("Write the figures as JSON, under vLLM's names.")] = None
    detailed: Annotated[bool, flag("With an entry per request.", "--detailed")] = False
    html: Annotated[Path | None, flag("Write a report with plots.")] = None


@dataclass(frozen=True)
class PlanFlags:
    """What must hold."""

    rate: Annotated[float | None, flag("Requests per second of the whole cluster; default: the trace's.")] = None
    ttft_p99: Annotated[str | None, flag("Limit, such as 500ms or 2s.")] = None
    tpot_p99: Annotated[str | None, flag("Limit.")] = None
    e2e_p99: Annotated[str | None, flag("Limit.")] = None
    target: Annotated[list[str] | None, flag("METRIC:pPERCENT:LIMIT, such as ttft:p95:300ms; several times.")] = None
    availability: Annotated[float, flag("Share of the time the targets must hold though replicas fail.")] = 0.0
    replica_availability: Annotated[float, flag("Share of the time a replica is up.")] = 0.99
    step_error: Annotated[float, flag("How far off step times may be, as a share.")] = 0.10
    trial_requests: Annotated[int, flag("Requests of each simulated rate.")] = 3000
    tune: Annotated[bool, flag("Search the knobs for --gpus devices instead.", "--tune")] = False
    gpus: Annotated[int, flag("Devices to tune for.")] = 1
    what_if: Annotated[bool, flag("Try changes of one thing.", "--what-if/--no-what-if")] = True
    result: Annotated[Path | None, flag("Write the plan as JSON.")] = None
    html: Annotated[Path | None, flag("Write the Pareto plot and the curve.")] = None
    quiet: Annotated[bool, flag("No progress lines.", "--quiet")] = False

    def targets(self) -> tuple[Any, ...]:
        """ConfigError for what is no target."""
        from paceline.sim.capacity import Target

        found = []
        for metric in ("ttft", "tpot", "e2e"):
            text = getattr(self, f"{metric}_p99")
            if text is not None:
                found.append(Target(metric, 99.0, seconds(f"--{metric}-p99", text)))
        for text in self.target or []:
            metric, _, rest = text.partition(":")
            percent, _, limit = rest.partition(":")
            try:
                share = float(percent.removeprefix("p"))
            except ValueError:
                share = -1.0
            if metric not in _TARGETS or not 0 < share < 100:
                raise ConfigError("--target", text, "METRIC:pPERCENT:LIMIT with ttft, tpot or e2e, as ttft:p95:300ms")
            found.append(Target(_TARGETS[metric], share, seconds("--target", limit)))
        return tuple(found)


def seconds(name: str, text: str) -> float:
    """A time as people type it: 500ms, 2s, 0.5 (seconds)."""
    plain, factor = text.strip().lower(), 1.0
    for ending, size in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if plain.endswith(ending):
            plain, factor = plain[: -len(ending)], size
            break
    try:
        value = float(plain) * factor
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(name, text, "a time above 0, such as 500ms or 2s")
    return value


@command(WorkloadFlags, DeploymentFlags, KnobFlags, SimulateFlags)
def simulate(traffic: WorkloadFlags, where: DeploymentFlags, how: KnobFlags, flags: SimulateFlags) -> int:
    """Replay traffic on a simulated replica or cluster: the scheduler itself, under a virtual clock."""
    from rich.console import Console

    from paceline.bench import report, tables
    from paceline.bench.save import run_values, save
    from paceline.cli.bench_flags import MeasureFlags
    from paceline.sim.results import as_run

    console = Console(highlight=False)
    measured = MeasureFlags(goodput=flags.goodput, percentiles=flags.percentiles)
    workload, _ = build(traffic)
    console.print(tables.plain(workload.describe()), style="dim")
    runs = []
    for name in how.discipline.split(","):
        run, facts = _simulated(workload, name, where, how, flags, traffic.seed)
        label = name if "," in how.discipline else flags.label or f"{name} (simulated)"
        runs.append(as_run(run, workload, label, measured.targets(), measured.percents(), facts))
    if len(runs) == 1:
        tables.print_run(console, runs[0])
        _print_inside(console, runs[0])
    else:
        tables.print_comparison(console, runs, "simulated, steady part")
        tables.print_findings(console, runs)
    if flags.result is not None:
        values = [run_values(run, flags.detailed) for run in runs]
        console.print(f"figures: {save(flags.result, values[0] if len(values) == 1 else values)}", markup=False)
    if flags.html is not None:
        path = report.write(flags.html, report.page(runs, "Simulation", workload.describe()))
        console.print(f"report: {path}", markup=False)
    return 0


def _simulated(
    workload: Any, name: str, where: DeploymentFlags, how: KnobFlags, flags: SimulateFlags, seed: int
) -> tuple[Any, dict[str, Any]]:
    from dataclasses import replace

    from paceline.sim.capacity import Traffic
    from paceline.sim.cluster import simulate as run_cluster
    from paceline.sim.engines import engine
    from paceline.sim.planner import longest_request, name_of, replica_spec
    from paceline.sim.profile import Profile
    from paceline.sim.router import router

    deployment = where.deployments()[0].with_coefficients(engine(where.engine).coefficients)
    profile = None if flags.profile is None else Profile.read(flags.profile)
    knobs = how.knobs(name, None if profile is None else profile.facts)
    longest, kv_tokens = longest_request(Traffic(workload, "poisson")), where.kv_tokens
    facts: dict[str, Any] = {"server": f"simulated: {name_of(deployment)}, {knobs.describe()}", "seed": seed}
    if profile is not None:
        kv_tokens = profile.kv_tokens if kv_tokens is None else kv_tokens
        facts["server"] = f"simulated: {profile.model} on {profile.hardware}, {knobs.describe()}"
    spec = replica_spec(deployment, knobs, longest, kv_tokens)
    if profile is not None:
        spec = replace(spec, times=profile.step_times())
        if (serving := profile.serving) is not None:
            spec = replace(spec, entry_seconds=serving.entry_seconds, exit_seconds=serving.exit_seconds)
            facts["serving"] = f"measured: {serving.per_step * 1e3:.2f} ms a step, {serving.per_row * 1e3:.3f} a row"
        facts["profile"] = f"{profile.engine} {profile.engine_version}, error {profile.left_out_error:.1%}"
    else:
        facts["step_times"] = f"analytic, {where.engine}: {engine(where.engine).source}"
    facts["model_id"] = profile.model if profile is not None else deployment.model.name
    faults = [_fault(text) for text in flags.fault or []]
    return run_cluster(workload, spec, flags.replicas, router(how.router, seed), faults), facts


def _fault(text: str) -> Any:
    from paceline.sim.cluster import Fault

    parts = text.split(":")
    try:
        at, replica, kind = float(parts[0]), int(parts[1]), parts[2]
        return Fault(at, replica, kind, float(parts[3]) if len(parts) > 3 else 1.0)
    except (ValueError, IndexError):
        raise ConfigError("--fault", text, "SECONDS:REPLICA:dies, :returns or :slows:FACTOR") from None


def _print_inside(console: Any, run: Any) -> None:
    facts = run.facts
    law = facts["little_whole_run"]
    console.print(
        f"{facts['replicas']} replicas, {facts['steps']:,} steps; KV mean {facts['kv_mean']:.0%}, p99 "
        f"{facts['kv_p99']:.0%}; {facts['preemptions_per_1000']:.2f} preemptions per 1,000 requests; "
        f"prefix hits {facts['prefix_hit_rate']:.1%}; "
        f"Little: {law['in_flight']:.2f} in flight, rate x time {law['rate_times_time']:.2f}",
        markup=False,
    )


@command(WorkloadFlags, DeploymentFlags, KnobFlags, PlanFlags)
def plan(traffic: WorkloadFlags, where: DeploymentFlags, how: KnobFlags, flags: PlanFlags) -> int:
    """How many of which device for this traffic and these targets."""
    from rich.console import Console

    from paceline.sim import planner
    from paceline.sim.capacity import Traffic
    from paceline.sim.plan_text import values

    console = Console(highlight=False)
    workload, own_rate = build(traffic)
    arrivals = "trace" if workload.timed and traffic.arrivals in ("auto", "trace") else "poisson"
    question = planner.Question(
        Traffic(workload, arrivals, traffic.seed),
        where.deployments(),
        flags.targets(),
        own_rate if flags.rate is None else flags.rate,
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

    if flags.tune:
        return _tune(console, question, flags, progress)
    answer = planner.plan(question, progress)
    _print_plan(console, answer)
    if flags.result is not None:
        flags.result.write_text(json.dumps(values(answer), indent=1) + "\n", encoding="utf-8")
        console.print(f"plan: {flags.result}", markup=False)
    if flags.html is not None:
        _write_plots(flags.html, answer)
        console.print(f"plots: {flags.html}", markup=False)
    return 0


def _tune(console: Any, question: Any, flags: PlanFlags, progress: Any) -> int:
    from rich.table import Table

    from paceline.sim.planner import PlanError, name_of, tune

    if flags.gpus < 1:
        raise ConfigError("--gpus", flags.gpus, "at least 1")
    ranked = tune(question, flags.gpus, progress)
    if not ranked or ranked[0][2] <= 0:
        raise PlanError(f"no setting that was tried meets the targets on {flags.gpus} devices")
    table = Table("requests/s", "replica", "knobs", title=f"knobs for {flags.gpus} devices, best first")
    for knobs, deployment, rate in ranked[:12]:
        table.add_row(f"{rate:.2f}", name_of(deployment), knobs.describe())
    console.print(table)
    return 0


def _print_plan(console: Any, answer: Any) -> None:
    from rich.table import Table

    from paceline.sim.plan_text import curve_rows, sections

    for title, rows in sections(answer):
        if not rows:
            continue
        table = Table(
            title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
        )
        table.add_column(min_width=20)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, value)
        console.print(table)
        console.print()
        if title == "One replica":
            header, *body = curve_rows(answer)
            curve = Table(*header, title="One replica: latency against rate", title_justify="left")
            for row in body:
                curve.add_row(*row)
            console.print(curve)
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
