"""What the commands of `paceline bench` do."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console

from paceline.bench import report, tables, terminal
from paceline.bench.bodies import PromptStyle
from paceline.bench.display import displays
from paceline.bench.load import LoadOptions
from paceline.bench.measure import MeasureOptions, measure, run_blocking
from paceline.bench.save import default_name, run_values, save
from paceline.bench.target import Target
from paceline.errors import ConfigError, PacelineError, flag_of
from paceline.workload.requests import Workload
from paceline.workload.run import Run

if TYPE_CHECKING:
    from paceline.cli.bench_flags import CompareFlags, MeasureFlags, SweepFlags, TargetFlags
    from paceline.cli.workload_flags import WorkloadFlags


def serve(target: TargetFlags, traffic: WorkloadFlags, flags: MeasureFlags) -> int:
    """One run; its status."""
    console = terminal.console()
    options = measure_options(target, traffic, flags)
    workload, rate = workload_of(target, traffic, flags)
    console.print(tables.plain(workload.describe()), style="dim")
    watch = None if flags.quiet else displays(console)
    run = run_blocking(measure(target_of(target), workload, options, rate, watch))
    tables.print_run(console, run)
    if (path := flags.file(lambda: default_name(run))) is not None:
        console.print(f"figures: {save(path, run_values(run, flags.save_detailed))}", markup=False)
    if flags.html is not None:
        page = report.page([run], f"Load test of {run.label}")
        console.print(f"report: {report.write(flags.html, page)}", markup=False)
    return 0 if run.valid else 1


def compare(versus: CompareFlags, target: TargetFlags, traffic: WorkloadFlags, flags: MeasureFlags) -> int:
    """Several systems on one workload."""
    from paceline.bench import compare as comparing

    console = terminal.console()
    options = measure_options(target, traffic, flags)
    if versus.disciplines is None and versus.base_urls is None:
        raise PacelineError("there is nothing to compare; give --disciplines, or --base-urls")
    if versus.disciplines is not None:
        found = comparing.by_discipline(versus.disciplines.split(","), versus.serve_model, versus.serve_args)
    else:
        found = comparing.by_url(str(versus.base_urls).split(","))
    workload, rate = workload_of(target, traffic, flags)
    console.print(tables.plain(workload.describe()), style="dim")

    def once(up: Target, title: str, number: int) -> Run:
        watch = None if flags.quiet else displays(console, title)
        run: Run = run_blocking(measure(up, workload, options.with_prompts(number), rate, watch))
        console.print(f"  {title}: {run.summary.steady.output_rate:,.0f} output tokens/s", markup=False)
        return run

    runs, every = comparing.in_turns(found, target_of(target), versus.rounds, once)
    tables.print_comparison(console, runs, "steady part" + (", median round" if versus.rounds > 1 else ""))
    if versus.rounds > 1:
        tables.print_rounds(console, every)
    tables.print_findings(console, runs)
    save_all(console, flags, [run for runs_of_one in every.values() for run in runs_of_one], "compare")
    if flags.html is not None:
        lead = f"One workload on {len(runs)} systems, in turns, {versus.rounds} rounds. {workload.describe()}."
        page = report.page(runs, "Side by side", escape(lead))
        console.print(f"report: {report.write(flags.html, page)}", markup=False)
    return 0 if all(run.valid for run in runs) else 1


def sweep(flags: SweepFlags, target: TargetFlags, traffic: WorkloadFlags, measured: MeasureFlags) -> int:
    """Rates up to the knee and beyond."""
    from paceline.bench import figures
    from paceline.bench.sweep import Sweep

    console = terminal.console()
    options = measure_options(target, traffic, measured)
    if not options.targets:
        options = replace(options, targets={"ttft": 1.0, "tpot": 0.1})
        console.print("no --goodput given: the targets are TTFT 1,000 ms and TPOT 100 ms", style="yellow")

    def at_rate(rate: float) -> Run:
        workload, real = workload_of(target, traffic, measured, rate)
        watch = None if measured.quiet else displays(console, f"{rate:.3g}/s")
        named = replace(options.with_prompts(len(found.runs)), label=f"{rate:.3g}/s")
        run: Run = run_blocking(measure(target_of(target), workload, named, real, watch))
        return run

    found = Sweep(at_rate, flags.good_share, flags.start_rate, flags.steps, flags.max_rate)

    def say(line: str) -> None:
        console.print(line, markup=False)

    if flags.rates is not None:
        found.these(rates_of(flags.rates), say)
    else:
        found.search(say)
    found.tidy()
    console.print(found.verdict(), style="bold")
    tables.print_findings(console, found.runs)
    save_all(console, measured, found.runs, "sweep", {"knee_requests_per_second": found.knee})
    if measured.html is not None:
        drawn = figures.against_rate(found.runs, found.knee)
        page = report.page(found.runs, "Latency against rate", escape(found.verdict()), drawn, contest=False)
        console.print(f"report: {report.write(measured.html, page)}", markup=False)
    return 0 if found.knee is not None else 1


def rates_of(text: str) -> list[float]:
    try:
        rates = [float(one) for one in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ConfigError("--rates", text, "numbers above 0, such as 1,2,4,8")
    return rates


def measure_options(target: TargetFlags, traffic: WorkloadFlags, flags: MeasureFlags) -> MeasureOptions:
    """ConfigError for flags that make no sense, or not together."""
    flags.check_outputs()
    if target.vocab_size <= target.first_token or target.first_token < 0:
        raise ConfigError("--vocab-size", target.vocab_size, f"above --first-token {target.first_token}")
    load = LoadOptions(
        concurrency=flags.concurrency or flags.max_concurrency,
        closed=flags.concurrency is not None,
        time_limit=flags.duration,
        style=PromptStyle(target.vocab_size, target.first_token, traffic.seed),
        sampling={"temperature": target.temperature},
    )
    return MeasureOptions(
        load=load,
        targets=flags.targets(),
        percentiles=flags.percents(),
        warmups=flags.num_warmups,
        timeout=flags.timeout,
        max_lateness=flags.max_lateness,
        metadata={"burstiness": traffic.burstiness, **flags.extra_facts()},
        label=flags.label or "",
    )


def target_of(flags: TargetFlags) -> Target:
    return Target(
        flags.base_url,
        flags.model or "",
        flags.endpoint,
        flags.api_key,
        token_ids=not flags.text_prompts,
        ignore_eos=flags.ignore_eos,
        extra_body=flags.extra(),
    )


def workload_of(
    target: TargetFlags, traffic: WorkloadFlags, flags: MeasureFlags, rate: float | None = None
) -> tuple[Workload, float]:
    from paceline.cli.workload_flags import build

    workload, rate = build(traffic, rate, ordered=flags.concurrency is None)
    if traffic.trace is not None and all(request.text is not None for request in workload.requests):
        for name in ("vocab_size", "first_token"):
            if (value := getattr(target, name)) != getattr(type(target), name):
                raise ConfigError(flag_of(name), value, f"left out: the prompts of {traffic.trace} are text")
    return workload, rate


def save_all(
    console: Console, flags: MeasureFlags, runs: list[Run], kind: str, more: dict[str, Any] | None = None
) -> None:
    if (path := flags.file(lambda: f"{kind}-{default_name(runs[0])}")) is not None:
        values = {**(more or {}), "runs": [run_values(run, flags.save_detailed) for run in runs]}
        console.print(f"figures: {save(path, values)}", markup=False)
