"""`paceline simulate`: what would happen. No model is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from paceline.cli.flag_sets import command, flag
from paceline.cli.limits import ReportedFlags
from paceline.cli.numbers import Span
from paceline.cli.outputs import OutputFlags
from paceline.cli.replica_flags import DeploymentFlags, KnobFlags
from paceline.cli.workload_flags import WorkloadFlags, build
from paceline.errors import ConfigError, PacelineError


@dataclass(frozen=True)
class SimulateFlags(ReportedFlags, OutputFlags):
    """The cluster, and what to do with the figures."""

    replicas: Annotated[int, flag("Replicas behind the router."), Span(1, 10**4)] = 1
    profile: Annotated[Path | None, flag("Measured step times, made by `paceline profile`.")] = None
    fault: Annotated[
        list[str] | None, flag("SECONDS:REPLICA:dies, :returns or :slows:FACTOR; may be given several times.")
    ] = None
    label: Annotated[str | None, flag("A name for the run.")] = None


@command(WorkloadFlags, DeploymentFlags, KnobFlags, SimulateFlags)
def simulate(traffic: WorkloadFlags, where: DeploymentFlags, how: KnobFlags, flags: SimulateFlags) -> int:
    """Replay traffic on a simulated replica or cluster: the scheduler itself, under a virtual clock."""
    from paceline.bench import report, tables, terminal
    from paceline.bench.save import default_name, run_values, save
    from paceline.sim.results import as_run

    console = terminal.console()
    flags.check_outputs()
    for name, text in (("--gpu", where.gpu), ("--tensor-parallel", where.tensor_parallel)):
        if "," in (text or ""):
            raise ConfigError(name, text, "one: 'paceline plan' compares several")
    targets, percents = flags.targets(), flags.percents()
    _check_names(where, how, flags)
    workload, _ = build(traffic)
    console.print(tables.plain(workload.describe()), style="dim")
    runs = []
    for name in how.discipline.split(","):
        run, facts = _simulated(workload, name, where, how, flags, traffic.seed)
        label = name if "," in how.discipline else flags.label or f"{name} (simulated)"
        runs.append(as_run(run, workload, label, targets, percents, facts))
    if len(runs) == 1:
        tables.print_run(console, runs[0])
        _print_inside(console, runs[0])
    else:
        tables.print_comparison(console, runs, "simulated, steady part")
        tables.print_findings(console, runs)
    if (path := flags.file(lambda: f"simulated-{default_name(runs[0])}")) is not None:
        values = [run_values(run, flags.save_detailed) for run in runs]
        console.print(f"figures: {save(path, values[0] if len(values) == 1 else values)}", markup=False)
    if flags.html is not None:
        page = report.page(runs, "Simulation", workload.describe())
        console.print(f"report: {report.write(flags.html, page)}", markup=False)
    return 0


def _check_names(where: DeploymentFlags, how: KnobFlags, flags: SimulateFlags) -> None:
    """ConfigError for what can be told without the traffic, before a long trace is read."""
    from paceline.core.disciplines import discipline
    from paceline.sim.engines import engine
    from paceline.sim.router import router

    engine(where.engine)
    where.deployments()
    router(how.router, 0)
    for name in how.discipline.split(","):
        discipline(name, how.order)
    for text in flags.fault or []:
        _fault(text, flags.replicas)


def _simulated(
    workload: Any, name: str, where: DeploymentFlags, how: KnobFlags, flags: SimulateFlags, seed: int
) -> tuple[Any, dict[str, Any]]:
    from dataclasses import replace

    from paceline.sim.capacity import Traffic
    from paceline.sim.cluster import simulate as run_cluster
    from paceline.sim.engines import engine
    from paceline.sim.profile import Profile
    from paceline.sim.question import longest_request, name_of, replica_spec
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
    faults = [_fault(text, flags.replicas) for text in flags.fault or []]
    return run_cluster(workload, spec, flags.replicas, router(how.router, seed), faults), facts


def _fault(text: str, replicas: int) -> Any:
    from paceline.sim.cluster import Fault

    parts = text.split(":")
    try:
        fault = Fault(float(parts[0]), int(parts[1]), parts[2], float(parts[3]) if len(parts) > 3 else 1.0)
        sensible = 0 <= fault.at < math.inf and 0 <= fault.replica < replicas and 0 < fault.factor < math.inf
    except (ValueError, IndexError, PacelineError):
        sensible = False
    if not sensible:
        last = f"a replica from 0 to {replicas - 1}, a factor above 0"
        raise ConfigError("--fault", text, f"SECONDS:REPLICA:dies, :returns or :slows:FACTOR, with {last}")
    return fault


def _print_inside(console: Any, run: Any) -> None:
    facts = run.facts
    law = facts["little_whole_run"]
    replicas = f"{facts['replicas']} replica{'' if facts['replicas'] == 1 else 's'}"
    console.print(
        f"{replicas}, {facts['steps']:,} steps; KV mean {facts['kv_mean']:.0%}, p99 "
        f"{facts['kv_p99']:.0%}; {facts['preemptions_per_1000']:.2f} preemptions per 1,000 requests; "
        f"prefix hits {facts['prefix_hit_rate']:.1%}; "
        f"Little: {law['in_flight']:.2f} in flight, rate x time {law['rate_times_time']:.2f}",
        markup=False,
    )
