"""How far the simulator is from the real thing, on this machine: measured and simulated latencies of the same requests.

    python benchmarks/fidelity.py                              # everything, about a quarter of an hour
    python benchmarks/fidelity.py --resume DIR --part profile  # a part at a time, keeping what is done in DIR
    python benchmarks/fidelity.py --resume DIR --part loads
    python benchmarks/fidelity.py --resume DIR                 # what is missing, then the table

The parts: `profile` is `paceline profile`; `loads` sends 30, 60 and 85 % of the simulated capacity as Poisson arrivals
of mixed lengths to a `paceline serve`, by a real client on the same machine; `profile-after` is `paceline profile` once
more. A shared machine does not keep one speed for a quarter of an hour: so the loads are sent in pieces, one of each in
turn, and the simulator gets the mean of the two profiles, and the same arrivals and lengths. Nothing is fitted to the
loads.

The engine has all cores but one, which is left to the server that streams its tokens and to the client (`--threads`).
Where the engine has every core, each moment of theirs holds up all threads of a step, and a profile taken at another
hour is off by more than the bounds.

What was measured while others worked on the machine is measured again, a few times.
Beside the simulation by the profile, one with all step times of a load multiplied by one number tells what is the
machine's speed and what is not (`at its speed`, not judged): such that a mean step takes what it took by the server's
count of steps in the time in which there was work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.bystanders import Bystanders, Patience
from paceline.bench.measure import MeasureOptions, measure, run_blocking
from paceline.bench.server_process import ServerProcess, typed
from paceline.bench.target import Target
from paceline.core.disciplines import discipline
from paceline.sim.cluster import ReplicaSpec, Run, simulate
from paceline.sim.profile import Profile
from paceline.workload.arrivals import AllAtOnce, Poisson
from paceline.workload.records import Outcome
from paceline.workload.requests import Workload
from paceline.workload.synthetic import Kind, Lengths, Synthetic

PROFILES = ("profile", "profile-after")
LOADS = "loads"
PARTS = (PROFILES[0], LOADS, PROFILES[1])
BOUNDS = {"mean": 0.05, "p50": 0.10, "p99": 0.10}
METRICS = ("ttft", "tpot", "e2e")
QUEUE = 1500  # requests that are given at once to see how many a second can be done
LENGTHS = (
    Kind(Lengths(32, 0.5), Lengths(24, 0.5), weight=0.5),
    Kind(Lengths(96, 0.5), Lengths(32, 0.5), weight=0.3),
    Kind(Lengths(320, 0.4), Lengths(64, 0.5), weight=0.2),
)
KV = 256 << 20  # bytes: enough that nobody is preempted, and little enough to be written once before the load
Figures = dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", type=Path, help="folder for what is measured; what is in it is not measured again")
    parser.add_argument("--part", choices=PARTS, help="only this; default: all that is missing, then the table")
    parser.add_argument("--loads", default="30,60,85", help="percent of capacity")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--discipline", default="paceline")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each piece of a load")
    parser.add_argument("--pieces", type=int, default=12, help="of each load")
    parser.add_argument("--tries", type=int, default=24, help="again for what others disturbed")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for others to end")
    parser.add_argument("--profile-seconds", type=float, default=45.0)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--max-model-len", type=int, default=1024)
    spare = max((os.cpu_count() or 2) - 1, 1)
    parser.add_argument("--threads", type=int, default=spare, help="of the engine; default: one core is left free")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    given = parser.parse_args()
    folder = given.resume or Path(tempfile.mkdtemp(prefix="fidelity-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"results are kept in {folder}")
    for part in [given.part] if given.part else PARTS if not given.table else []:
        missing = [load for load in given.loads.split(",") if not (folder / f"{load}.json").exists()]
        if part != LOADS and (given.part or not (folder / f"{part}.json").exists()):
            print(f"-- {part}", flush=True)
            take_profile(given, folder / f"{part}.json")
        elif part == LOADS and missing:
            print(f"-- loads of {', '.join(missing)} %", flush=True)
            Loads(given, folder, missing).run()
    if given.table or not given.part:
        sys.exit(print_table(given, folder))


def flags(given: argparse.Namespace) -> list[str]:
    """What the profile and the server have in common."""
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "threads")
    return typed({name: getattr(given, name) for name in names} | {"kv_cache_memory": KV})


def take_profile(given: argparse.Namespace, path: Path) -> None:
    command = [sys.executable, "-m", "paceline", "profile", given.model, "--output", str(path)]
    subprocess.run([*command, "--seconds", str(given.profile_seconds), *flags(given)], check=True)


def mean_of(profiles: Sequence[Profile]) -> Profile:
    """Of profiles with the same settings: the mean of each of their numbers."""

    def mean(of: Callable[[Any], float]) -> float:
        return float(np.mean([of(each) for each in profiles]))

    first = profiles[0]
    means: dict[str, Any] = {
        name: mean(attrgetter(name)) for name in ("per_sample", "per_pair", "per_context", "left_out_error")
    }
    found = replace(
        first,
        knots=[
            (same[0][0], float(np.mean([seconds for _, seconds in same])))
            for same in zip(*(each.knots for each in profiles), strict=True)
        ],
        **means,
    )
    if first.serving is None:
        return found
    served = ("per_step", "per_row", "per_request", "entry_seconds", "exit_seconds")
    means = {name: mean(attrgetter(f"serving.{name}")) for name in served}
    return replace(found, serving=replace(first.serving, **means))


def spec_of(given: argparse.Namespace, known: Profile) -> ReplicaSpec:
    """The served engine as the simulator knows it."""
    row = discipline(given.discipline)
    config = row.configure(
        num_blocks=known.kv_tokens // known.block_size,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_model_len=given.max_model_len,
    )
    serving = known.serving
    spec = ReplicaSpec(config, row, known.step_times())
    if serving is None:
        return spec
    return replace(spec, entry_seconds=serving.entry_seconds, exit_seconds=serving.exit_seconds)


def capacity(spec: ReplicaSpec) -> float:
    """Requests per second of a replica that has a long queue. All of it: an order that puts short requests first would
    look too good in any part."""
    return QUEUE / simulate(Synthetic(LENGTHS, AllAtOnce()).workload(QUEUE, seed=1), spec).end


def piece_of(given: argparse.Namespace, part: str, rate: float, number: int) -> Workload:
    """One piece of a load."""
    count = max(round(rate * given.seconds), 10)
    return Synthetic(LENGTHS, Poisson(rate)).workload(count, seed=100 * int(part) + number)


class Loads:
    """The real server, asked by the real client: a piece of each load in turn."""

    def __init__(self, given: argparse.Namespace, folder: Path, loads: Sequence[str]) -> None:
        self.given, self.folder, self.loads = given, folder, loads
        self.known = Profile.read(folder / f"{PROFILES[0]}.json")
        self.patience = Patience(given.tries, given.patience, print)
        self.prompts = 0  # sets of prompts that were sent: the cache must know none of the next

    def run(self) -> None:
        given = self.given
        most = capacity(spec_of(given, self.known))
        found: dict[str, dict[str, Any]] = {load: {"rate": int(load) / 100 * most, "pieces": []} for load in self.loads}
        with ServerProcess(given.model, "--discipline", given.discipline, *flags(given)) as server:
            target = Target(server.url)
            self._send(target, fill(self.known.kv_tokens))
            for number in range(given.pieces):
                for load, run in found.items():
                    run["pieces"].append(self._undisturbed(target, piece_of(given, load, run["rate"], number)))
        for load, run in found.items():
            (self.folder / f"{load}.json").write_text(json.dumps(run) + "\n")

    def _undisturbed(self, target: Target, workload: Workload) -> dict[str, Any]:
        """One piece, and again if others worked on the machine meanwhile."""
        while True:
            bystanders = Bystanders()
            found = self._piece(target, workload)
            quiet = bystanders.seen()
            if not self.patience.again(quiet):
                return found | {"quiet": str(quiet), "disturbed": quiet.disturbed}

    def _send(self, target: Target, workload: Workload) -> Any:
        self.prompts += 1
        return run_blocking(measure(target, workload, MeasureOptions(warmups=0).with_prompts(self.prompts)))

    def _piece(self, target: Target, workload: Workload) -> dict[str, Any]:
        print(f"{len(workload)} requests in {workload.duration:.0f} s: {workload.arrivals}", flush=True)
        run = self._send(target, workload)
        ok = run.records.outcome == Outcome.OK
        times = {name: [None if v != v else v for v in getattr(run.records, name)[ok].tolist()] for name in METRICS}
        return {
            "requests": len(workload),
            "ok": int(ok.sum()),
            "client": {name: run.facts[name] for name in ("client_cpu", "client_lag_p99_ms", "client_overhead_ms")},
            "steps": run.timeline.counters.get("steps"),
            **times,
        }


def fill(kv_tokens: int) -> Workload:
    """Requests that write every block of the cache once: the first to do so waits for the system's memory."""
    kind = Kind(Lengths(500, 0.01), Lengths(2, 0.01))
    return Synthetic((kind,), AllAtOnce()).workload(kv_tokens // 480 + 1, seed=1)


def simulated(
    given: argparse.Namespace, part: str, run: dict[str, Any], known: Profile, slowness: float = 1.0
) -> list[Run]:
    """The same requests, piece by piece, with every step so many times as long as in the profile."""
    spec = spec_of(given, known)
    spec = replace(spec, times=spec.times.scaled(slowness))
    return [simulate(piece_of(given, part, run["rate"], number), spec) for number in range(len(run["pieces"]))]


def slowness(given: argparse.Namespace, part: str, run: dict[str, Any], known: Profile) -> float:
    """By how much a mean step of the load was longer than by the profile, from the server's count of steps in the time
    in which there was work; NaN: it is not known."""
    pieces = run["pieces"]
    if any(not piece.get("steps") or piece["ok"] < piece["requests"] for piece in pieces):
        return math.nan
    dues = [piece_of(given, part, run["rate"], number).times() for number in range(len(pieces))]
    there = sum(occupied(due, np.array(piece["e2e"])) for due, piece in zip(dues, pieces, strict=True))
    real = there / sum(piece["steps"] for piece in pieces)
    low, high = 0.5, 2.5
    for _ in range(9):
        factor = (low * high) ** 0.5
        done = simulated(given, part, run, known, factor)
        step = sum(occupied(each.records.scheduled, each.records.e2e) for each in done)
        low, high = (factor, high) if step / sum(each.usage.steps for each in done) < real else (low, factor)
    return float((low * high) ** 0.5)


def occupied(due: NDArray[np.float64], e2e: NDArray[np.float64]) -> float:
    """Seconds in which somebody was in the system: from the times they were due, and how long they stayed."""
    ends = np.maximum.accumulate(due + e2e)
    return float((ends - np.maximum(due, np.append(due[0], ends[:-1]))).clip(0).sum())


def figures(pieces: Sequence[Mapping[str, Any]]) -> Figures:
    """Of all requests that ended well: metric -> mean, p50 and p99, in seconds."""
    found: Figures = {}
    for metric in METRICS:
        values = np.concatenate([np.array(piece[metric], np.float64) for piece in pieces])
        values = values[~np.isnan(values)]
        found[metric] = {
            "mean": float(values.mean()),
            "p50": float(np.percentile(values, 50)),
            "p99": float(np.percentile(values, 99)),
        }
    return found


def figures_of(done: Sequence[Run]) -> Figures:
    """The same of simulated pieces."""
    return figures([{name: getattr(each.records, name) for name in METRICS} for each in done])


def print_table(given: argparse.Namespace, folder: Path) -> int:
    """Measured beside simulated. Status 1: something is outside its bound."""
    paths = [path for name in PROFILES if (path := folder / f"{name}.json").exists()]
    profiles = [Profile.read(path) for path in paths]
    known = mean_of(profiles)
    print(f"\n{known.model} ({known.dtype}) on {known.hardware}, {given.threads} thread(s) for the engine")
    for path, each in zip(paths, profiles, strict=True):
        print(f"{path.stem}: {each.shapes} shapes, {each.left_out_error:.1%} on shapes left out", end="")
        print(f"; {each.facts.get('quiet', '')}; capacity {capacity(spec_of(given, each)):.2f} requests/s")
    print()
    print(f"{'load':>5} {'metric':6} {'':5} {'measured':>10} {'simulated':>10} {'error':>8} {'bound':>6}", end="")
    print("        at its speed")
    missed = 0
    for part in given.loads.split(","):
        if not (folder / f"{part}.json").exists():
            print(f"{part:>4}% not measured")
            continue
        missed += _print_load(given, part, json.loads((folder / f"{part}.json").read_text()), known)
    return 1 if missed else 0


def _print_load(given: argparse.Namespace, part: str, run: dict[str, Any], known: Profile) -> int:
    pieces, missed = run["pieces"], 0
    if [piece["requests"] for piece in pieces] != [
        len(piece_of(given, part, run["rate"], number)) for number in range(len(pieces))
    ]:
        sys.exit(f"{part}.json was measured with other settings; measure it again in another folder")
    factor = slowness(given, part, run, known)
    measured = figures(pieces)
    by_profile = figures_of(simulated(given, part, run, known))
    at_its_speed = None if math.isnan(factor) else figures_of(simulated(given, part, run, known, factor))
    for metric in METRICS:
        for statistic, bound in BOUNDS.items():
            real, found = measured[metric][statistic], by_profile[metric][statistic]
            error = found / real - 1
            missed += abs(error) > bound
            text = f"{part:>4}% {metric:6} {statistic:5} {real * 1e3:7.1f} ms {found * 1e3:7.1f} ms "
            text += f"{error:+8.1%} {bound:6.0%} {'pass' if abs(error) <= bound else 'MISS'}"
            print(text + ("" if at_its_speed is None else f"   {at_its_speed[metric][statistic] / real - 1:+8.1%}"))
    sent, ok = (sum(piece[name] for piece in pieces) for name in ("requests", "ok"))
    busy = sum(piece["disturbed"] for piece in pieces)
    told = f"{run['rate']:.2f} requests/s; {ok} of {sent} answered; steps took {factor:.3f} of the profile's"
    print(f"      {told}; others disturbed {busy} of {len(pieces)} pieces\n")
    return missed


if __name__ == "__main__":
    main()
