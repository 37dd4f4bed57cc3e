"""Microseconds of schedule + complete in steady decode, and how they divide.

    python benchmarks/scheduler_step.py --running 1,32,256,1024 --json

Block-edge crossings are spread evenly over the steps, the prefix cache and the counters are on, nobody finishes.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time

import numpy as np

from paceline.core.disciplines import DISCIPLINES
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.params import SamplingParams
from paceline.core.plan import StepResult
from paceline.core.request import Request
from paceline.core.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT = 64


def steady(running: int, discipline: str, steps: int) -> Scheduler:
    """A scheduler whose `running` sequences have all been prefilled; their lengths differ modulo the block size."""
    longest = PROMPT + BLOCK_SIZE + steps + 64
    row = discipline_named(discipline)
    if "max_concurrent_requests" in row.knobs():
        row = row.with_knobs({"max_concurrent_requests": running})
    config = row.configure(
        num_blocks=running * (longest // BLOCK_SIZE + 2) + 64,
        block_size=BLOCK_SIZE,
        max_num_seqs=max(running, 1),
        max_num_batched_tokens=max(8192, running * (PROMPT + BLOCK_SIZE)),  # a closed batch takes all prompts at once
        max_model_len=longest + BLOCK_SIZE,
        enable_prefix_caching=True,
    )
    scheduler = Scheduler(config, row)
    params = SamplingParams(max_tokens=steps + 64, ignore_eos=True)
    for index in range(running):
        length = PROMPT + index % BLOCK_SIZE
        prompt = np.arange(index * 1000, index * 1000 + length, dtype=np.int32)
        scheduler.add(Request(id=f"r{index}", prompt=prompt, params=params), now=0.0)
    while scheduler.num_waiting or (scheduler.batch.length - scheduler.batch.computed).max() > 1:
        one_step(scheduler, 0)
    return scheduler


def one_step(scheduler: Scheduler, token: int) -> tuple[int, int]:
    """Nanoseconds of schedule() and complete()."""
    begin = time.perf_counter_ns()
    plan = scheduler.schedule(0.0)
    middle = time.perf_counter_ns()
    assert plan is not None
    result = StepResult(tokens=np.full(int(plan.samples.sum()), token, np.int32))
    resume = time.perf_counter_ns()
    scheduler.complete(result, 0.0)
    return middle - begin, time.perf_counter_ns() - resume


def measure(running: int, discipline: str, steps: int) -> dict[str, float | int]:
    scheduler = steady(running, discipline, steps + 32)
    for token in range(32):
        one_step(scheduler, token)
    gc.collect()
    gc.disable()
    times = [one_step(scheduler, token) for token in range(steps)]
    gc.enable()
    totals = [(schedule + complete) / 1000 for schedule, complete in times]
    return {
        "running": running,
        "schedule_us": round(statistics.median(schedule for schedule, _ in times) / 1000, 1),
        "complete_us": round(statistics.median(complete for _, complete in times) / 1000, 1),
        "total_us": round(statistics.median(totals), 1),
        "min_us": round(min(totals), 1),
        "us_per_request": round(statistics.median(totals) / running, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", default="1,32,256,1024", help="comma separated numbers of running sequences")
    parser.add_argument("--discipline", default="paceline", choices=[*DISCIPLINES, "all"])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = list(DISCIPLINES) if options.discipline == "all" else [options.discipline]
    sizes = [int(size) for size in options.running.split(",")]
    rows = [{"discipline": name, **measure(size, name, options.steps)} for name in names for size in sizes]
    if options.json:
        print(json.dumps({"benchmark": "scheduler_step", "unit": "us", "statistic": "p50", "results": rows}))
        return
    print(f"{'discipline':<24}{'running':>8}{'schedule':>10}{'complete':>10}{'total':>9}{'min':>9}{'per request':>13}")
    for row in rows:
        print(
            f"{row['discipline']:<24}{row['running']:>8}{row['schedule_us']:>10}{row['complete_us']:>10}"
            f"{row['total_us']:>9}{row['min_us']:>9}{row['us_per_request']:>13}"
        )


if __name__ == "__main__":
    main()
