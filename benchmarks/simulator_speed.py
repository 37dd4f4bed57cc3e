"""Requests simulated per second of processor time, one replica, metrics on.

    python benchmarks/simulator_speed.py --trace azure2023_conv

The replica is Llama-3.1-8B in bf16 on one H100. Targets: 5,000 requests/s on the trace as it is; a million requests on
256 replicas in ten minutes (`--replicas 256 --requests 100000` measures a slice and extrapolates).
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import replace

import numpy as np

from paceline.core.disciplines import discipline
from paceline.sim.cluster import ReplicaSpec, simulate
from paceline.sim.hardware import hardware
from paceline.sim.latency import Deployment
from paceline.sim.models import model
from paceline.sim.router import router
from paceline.workload.metrics import summarise
from paceline.workload.packed import PackedRequests
from paceline.workload.requests import Workload
from paceline.workload.traces import read


def repeated(workload: Workload, count: int) -> Workload:
    """The trace's times and lengths again and again, each time with prompts of its own."""
    period = workload.duration + 0.2
    round_, at = np.divmod(np.arange(count, dtype=np.int32), np.int32(len(workload)))
    prompts, answers = workload.lengths()
    times = workload.times()[at] + round_ * period
    return replace(workload, requests=PackedRequests(times, prompts[at], answers[at], np.arange(1, count + 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="azure2023_conv", help="a shipped trace by name, or a file")
    parser.add_argument("--discipline", default="paceline")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--rate", type=float, help="requests/s for the whole cluster")
    parser.add_argument("--router", default="least-load")
    parser.add_argument("--slow", action="store_true", help="every step by itself")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    workload = read(options.trace)
    if options.requests:
        workload = repeated(workload, options.requests)
    if options.rate:
        workload = workload.at_rate(options.rate)
    deployment = Deployment(model("llama-3.1-8b"), hardware("h100"))
    row = discipline(options.discipline)
    config = row.configure(
        num_blocks=deployment.kv_tokens(0.9, 8192) // 16,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=int(np.add(*workload.lengths()).max()) + 1,
    )
    spec = ReplicaSpec(config, row, deployment.step_times())
    begin, processor = time.perf_counter(), time.process_time()
    run = simulate(workload, spec, options.replicas, router(options.router), fast=not options.slow)
    summary = summarise(run.records, {"ttft": 0.5, "tpot": 0.05})
    processor, wall = time.process_time() - processor, time.perf_counter() - begin
    usage = run.usage
    found = {
        "requests": len(workload),
        "replicas": options.replicas,
        "processor_s": round(processor, 2),
        "wall_s": round(wall, 2),
        "requests_per_s": round(len(workload) / processor),
        "steps": usage.steps,
        "taken_together": usage.fast_steps,
        "simulated_over_processor": round(run.end / processor),
        "p99_ttft_ms": round(summary.steady.ttft.at(99.0) * 1e3, 1),
        "p99_tpot_ms": round(summary.steady.tpot.at(99.0) * 1e3, 2),
        "good": round(summary.steady.goodput.share, 4) if summary.steady.goodput else None,
        "little_residual": round(summary.steady.little.residual, 5),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(found) if options.json else "\n".join(f"{name:>26}  {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
