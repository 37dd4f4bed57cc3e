"""`paceline bench`: load tests of OpenAI-compatible servers, and of an engine without one."""

from __future__ import annotations

from typing import Any

import typer

from paceline.cli.bench_flags import CompareFlags, MeasureFlags, SweepFlags, TargetFlags
from paceline.cli.bench_offline_flags import EngineFlags, OfflineFlags
from paceline.cli.flag_sets import command
from paceline.cli.idle_flags import CheckedCommand
from paceline.cli.workload_flags import WorkloadFlags

app = typer.Typer(
    name="bench",
    help="Measure servers: one (serve), several side by side (compare), or up to the knee (sweep); offline: an engine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("serve", cls=CheckedCommand)
@command(TargetFlags, WorkloadFlags, MeasureFlags)
def bench_serve(target: TargetFlags, traffic: WorkloadFlags, flags: MeasureFlags) -> int:
    """Send a workload to a server and say how it did. Status 1: the figures are not valid, and why."""
    _need_extra()
    from paceline.cli.bench_commands import serve

    return serve(target, traffic, flags)


@app.command("compare", cls=CheckedCommand, short_help="One workload on several systems, in turns, side by side.")
@command(CompareFlags, TargetFlags, WorkloadFlags, MeasureFlags)
def bench_compare(versus: CompareFlags, target: TargetFlags, traffic: WorkloadFlags, flags: MeasureFlags) -> int:
    """One workload on several disciplines, or several servers, in turns (A B A B), side by side."""
    _need_extra()
    from paceline.cli.bench_commands import compare

    return compare(versus, target, traffic, flags)


@app.command("sweep", cls=CheckedCommand, short_help="Find the last rate that meets the targets: the knee.")
@command(SweepFlags, TargetFlags, WorkloadFlags, MeasureFlags)
def bench_sweep(sweep: SweepFlags, target: TargetFlags, traffic: WorkloadFlags, flags: MeasureFlags) -> int:
    """Raise the rate until the targets break, and find the last rate that meets them: the knee."""
    _need_extra()
    from paceline.cli.bench_commands import sweep as run

    return run(sweep, target, traffic, flags)


@app.command("offline", cls=CheckedCommand, short_help="Run a workload on an engine in this process.")
@command(OfflineFlags, EngineFlags)
def bench_offline(flags: OfflineFlags, engine: Any) -> int:
    """Run a workload of exact token ids on an engine in this process, without a server: rates, latencies, memory."""
    from paceline.cli.bench_offline import offline

    return offline(flags, engine)


def _need_extra() -> None:
    from paceline.errors import PacelineError

    try:
        import aiohttp  # noqa: F401
    except ModuleNotFoundError:
        raise PacelineError("this command needs the bench extra; pip install 'paceline[bench]'") from None
