"""How far the simulator is from the real thing, on this machine: measured and simulated latencies of the same requests.

    python benchmarks/fidelity.py                              # everything, about a quarter of an hour
    python benchmarks/fidelity.py --resume DIR --part profile  # a part at a time, keeping what is done in DIR
    python benchmarks/fidelity.py --resume DIR --part 60
    python benchmarks/fidelity.py --resume DIR                 # what is missing, then the table

The parts: `profile` is `paceline profile`; `30`, `60` and `85` send that share of the simulated capacity as Poisson
arrivals of mixed lengths to a `paceline serve` of its own, by a real client on the same machine; `60-again` sends one
of them a second time, and shows what the machine differs from itself. The simulator gets the profile, and the same
arrivals and lengths; nothing is fitted to the loads.

A machine shared with others does not keep one speed, and a load of 60 % is one of 75 % when it runs a quarter slower
than in the profile. So the last column simulates the machine at the speed it had: all step times are multiplied by one
number, such that a mean step takes what it took, by the server's count of steps in the time in which there was work.
Run it on a machine that does nothing else: it says what else ran.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.bystanders import Bystanders
from paceline.bench.measure import MeasureOptions, measure, run_blocking
from paceline.bench.server_process import ServerProcess
from paceline.bench.target import Target
from paceline.core.disciplines import discipline
from paceline.sim.cluster import ReplicaSpec, simulate
from paceline.sim.profile import Profile
from paceline.workload.arrivals import AllAtOnce, Poisson
from paceline.workload.records import Outcome, Records
from paceline.workload.requests import Workload
from paceline.workload.synthetic import Kind, Lengths, Synthetic

PARTS = ("profile", "30", "60", "85", "60-again")
BOUNDS = {"mean": 0.05, "p50": 0.10, "p99": 0.10}
METRICS = ("ttft", "tpot", "e2e")
QUEUE = 1500  # requests that are given at once to see how many a second can be done
LENGTHS = (
    Kind(Lengths(32, 0.5), Lengths(32, 0.5), weight=0.5),
    Kind(Lengths(128, 0.5), Lengths(64, 0.5), weight=0.3),
    Kind(Lengths(512, 0.5), Lengths(128, 0.5), weight=0.2),
)
Figures = dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", type=Path, help="folder for what is measured; what is in it is not measured again")
    parser.add_argument("--part", choices=PARTS, help="only this; default: all that is missing, then the table")
    parser.add_argument("--loads", default="30,60,85", help="of the table")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--discipline", default="paceline")
    parser.add_argument("--seconds", type=float, default=180.0, help="of each load")
    parser.add_argument("--profile-seconds", type=float, default=60.0)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--threads", type=int, help="of the engine; default: one per core")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    given = parser.parse_args()
    folder = given.resume or Path(tempfile.mkdtemp(prefix="fidelity-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"results are kept in {folder}")
    parts = [given.part] if given.part else ["profile", *given.loads.split(",")]
    for part in parts if not given.table else []:
        if given.part or not (folder / f"{part}.json").exists():
            print(f"-- {part}", flush=True)
            take_profile(given, folder) if part == "profile" else run_load(given, folder, part)
    if given.table or not given.part:
        sys.exit(print_table(given, folder))


def settings(given: argparse.Namespace) -> list[str]:
    """Flags that the profile and the server have in common."""
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "threads")
    wanted = {name.replace("_", "-"): getattr(given, name) for name in names}
    flags = [text for name, value in wanted.items() if value is not None for text in (f"--{name}", str(value))]
    return [*flags, "--kv-cache-memory", "1GiB"]


def take_profile(given: argparse.Namespace, folder: Path) -> None:
    command = [sys.executable, "-m", "paceline", "profile", given.model, "--output", str(folder / "profile.json")]
    subprocess.run([*command, "--seconds", str(given.profile_seconds), *settings(given)], check=True)


def spec_of(given: argparse.Namespace, folder: Path) -> ReplicaSpec:
    """The served engine as the simulator knows it."""
    profile = Profile.read(folder / "profile.json")
    row = discipline(given.discipline)
    config = row.configure(
        num_blocks=profile.kv_tokens // profile.block_size,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_model_len=given.max_model_len,
    )
    serving = profile.serving
    spec = ReplicaSpec(config, row, profile.step_times())
    if serving is None:
        return spec
    return replace(spec, entry_seconds=serving.entry_seconds, exit_seconds=serving.exit_seconds)


def workload_of(given: argparse.Namespace, folder: Path, part: str) -> tuple[Workload, float]:
    """The rate is a share of what the profile says can be done; what was measured before is asked for again."""
    share = int(part.partition("-")[0])
    before = folder / f"{share}.json"
    if before.exists():
        rate = float(json.loads(before.read_text())["rate"])
    else:
        rate = share / 100 * capacity(spec_of(given, folder))
    count = max(round(rate * given.seconds), 20)
    return Synthetic(LENGTHS, Poisson(rate)).workload(count, seed=share), rate


def capacity(spec: ReplicaSpec) -> float:
    """Requests per second of a replica that has a long queue. All of it: an order that puts short requests first would
    look too good in any part."""
    return QUEUE / simulate(Synthetic(LENGTHS, AllAtOnce()).workload(QUEUE, seed=1), spec).end


def run_load(given: argparse.Namespace, folder: Path, part: str) -> None:
    """The real server, asked by the real client."""
    workload, rate = workload_of(given, folder, part)
    print(f"{len(workload)} requests in {workload.duration:.0f} s: {workload.arrivals}", flush=True)
    bystanders = Bystanders()
    with ServerProcess(given.model, "--discipline", given.discipline, *settings(given)) as server:
        run = run_blocking(measure(Target(server.url), workload, MeasureOptions(warmups=8)))
        quiet = bystanders.seen()
    for finding in run.findings:
        if finding.level != "note":
            print(f"{finding.level}: {finding.text}")
    print(f"{quiet}")
    values = {
        "part": part,
        "arrivals": workload.arrivals,
        "rate": rate,
        "quiet": str(quiet),
        "client": {name: run.facts[name] for name in ("client_cpu", "client_lag_p99_ms", "client_overhead_ms")},
        "steps": run.timeline.counters.get("steps"),
        "ok": int(run.summary.whole.outcomes["ok"]),
        "requests": len(run.records),
        "in_flight": run.summary.steady.little.in_flight,
        "figures": figures(run.records),
        "ttft": run.records.ttft.tolist(),
        "tpot": [None if np.isnan(value) else value for value in run.records.tpot.tolist()],
        "e2e": run.records.e2e.tolist(),
    }
    (folder / f"{part}.json").write_text(json.dumps(values) + "\n")


def figures(records: Records) -> Figures:
    """Of all requests that ended well: metric -> mean, p50 and p99, in seconds."""
    ok = records.select(records.outcome == Outcome.OK)
    found: Figures = {}
    for metric in METRICS:
        values = getattr(ok, metric)
        values = values[~np.isnan(values)]
        found[metric] = {
            "mean": float(values.mean()),
            "p50": float(np.percentile(values, 50)),
            "p99": float(np.percentile(values, 99)),
        }
    return found


def print_table(given: argparse.Namespace, folder: Path) -> int:
    """Measured beside simulated. Status 1: something is outside its bound."""
    profile = Profile.read(folder / "profile.json")
    print(f"\n{profile.model} ({profile.dtype}) on {profile.hardware}")
    print(f"profile: {profile.shapes} shapes, {profile.left_out_error:.1%} on shapes left out", end="")
    print(f"; {profile.facts.get('quiet', '')}")
    most = capacity(spec_of(given, folder))
    print(f"capacity by simulation: {most:.2f} requests/s\n")
    print(f"{'load':>5} {'metric':6} {'':5} {'measured':>10} {'simulated':>10} {'error':>8} {'bound':>6}", end="")
    print(f"      {'at its speed':>22}")
    missed = 0
    for part in given.loads.split(","):
        if not (folder / f"{part}.json").exists():
            print(f"{part:>4}% not measured")
            continue
        workload, _ = workload_of(given, folder, part)
        run = json.loads((folder / f"{part}.json").read_text())
        if run["requests"] != len(workload):
            sys.exit(f"{folder}/{part}.json is of another profile; remove it, or measure it again with --part {part}")
        spec = spec_of(given, folder)
        simulated = figures(simulate(workload, spec).records)
        factor = slowness(workload, spec, run)
        slowed = replace(spec, times=spec.times.scaled(factor))
        missed += _print_load(part, run, simulated, figures(simulate(workload, slowed).records))
        print(f"      {run['rate']:.2f} requests/s, {run['rate'] / most:.0%} of capacity; {run['ok']} of", end=" ")
        print(f"{run['requests']} answered, {run['in_flight']:.1f} in flight; {run['quiet']}")
        if run.get("steps"):
            print(f"      steps took {factor:.2f} times as long as the profile says")
        print()
        again = folder / f"{part}-again.json"
        if again.exists():
            _print_again(part, run, json.loads(again.read_text()))
    return 1 if missed else 0


def slowness(workload: Workload, spec: ReplicaSpec, run: dict[str, Any]) -> float:
    """By what all step times are to be multiplied for a mean step to take what it took; 1: that is not known."""
    if not run.get("steps"):
        return 1.0
    real = _occupied(workload.times(), np.array(run["e2e"])) / run["steps"]
    low, high = 0.5, 2.0
    for _ in range(9):
        factor = (low * high) ** 0.5
        done = simulate(workload, replace(spec, times=spec.times.scaled(factor)))
        step = _occupied(done.records.scheduled, done.records.e2e) / done.usage.steps
        low, high = (factor, high) if step < real else (low, factor)
    return float((low * high) ** 0.5)


def _occupied(due: NDArray[np.float64], e2e: NDArray[np.float64]) -> float:
    """Seconds in which somebody was in the system: from the times they were due, and how long they stayed."""
    ends = np.maximum.accumulate(due + e2e)
    return float((ends - np.maximum(due, np.append(due[0], ends[:-1]))).clip(0).sum())


def _print_load(part: str, run: dict[str, object], simulated: Figures, slowed: Figures) -> int:
    measured: Figures = run["figures"]  # type: ignore[assignment]
    missed = 0
    for (metric, statistic, real, found), (*_, other) in zip(
        _rows(measured, simulated), _rows(measured, slowed), strict=True
    ):
        bound, error = BOUNDS[statistic], found / real - 1
        missed += abs(error) > bound
        print(f"{part:>4}% {metric:6} {statistic:5} {real * 1e3:7.1f} ms {found * 1e3:7.1f} ms", end=" ")
        print(f"{error:+8.1%} {bound:6.0%} {_verdict(error, bound)}", end="  ")
        print(f"{other * 1e3:7.1f} ms {other / real - 1:+8.1%} {_verdict(other / real - 1, bound)}")
    return missed


def _verdict(error: float, bound: float) -> str:
    return "pass" if abs(error) <= bound else "MISS"


def _print_again(part: str, first: dict[str, object], second: dict[str, object]) -> None:
    """What the same load differs from itself by, a few minutes later."""
    rows = _rows(first["figures"], second["figures"])  # type: ignore[arg-type]
    texts = [f"{metric} {statistic} {other / real - 1:+.1%}" for metric, statistic, real, other in rows]
    print(
        f"      the same {part} % load measured again differs from itself by: {', '.join(texts)}; {second['quiet']}\n"
    )


def _rows(one: Figures, other: Figures) -> Sequence[tuple[str, str, float, float]]:
    return [(m, s, one[m][s], other[m][s]) for m in METRICS for s in BOUNDS]


if __name__ == "__main__":
    main()
