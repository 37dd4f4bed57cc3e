"""How much of a workload with shared prefixes each order finds in the cache.

    python benchmarks/hit_rate.py --orders fcfs,lpm,dfs,hrrn --json

1,000 prompts of 1,280 tokens (20 roots x 5 branches x 10 leaves, of 512 + 512 + 256 tokens), all waiting from the
start in random order, one token of output, a cache of 16k tokens, 8 prompts a step. Every distinct token computed once
gives 0.752, which is the most there can be; first come, first served finds what happens to be near.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import discipline
from paceline.core.orders import ORDERS
from paceline.core.params import SamplingParams
from paceline.core.plan import StepResult
from paceline.core.request import IntArray, Request
from paceline.core.scheduler import Scheduler

ROOTS, BRANCHES, LEAVES = 20, 5, 10
ROOT, BRANCH, LEAF = 512, 512, 256


def prompts(seed: int) -> list[IntArray]:
    """The workload, shuffled."""
    random = np.random.default_rng(seed)

    def text(length: int) -> IntArray:
        return random.integers(0, 100_000, length).astype(np.int32)

    made = []
    for _ in range(ROOTS):
        root = text(ROOT)
        for _ in range(BRANCHES):
            branch = text(BRANCH)
            made += [np.concatenate([root, branch, text(LEAF)]) for _ in range(LEAVES)]
    return [made[index] for index in random.permutation(len(made))]


def play(order: str, knobs: dict[str, Any] | None = None, cache: int = 16_384, rows: int = 8, seed: int = 0) -> Any:
    """Run the workload through a scheduler. Returns its hit rate, and by how many each was overtaken."""
    config = SchedulerConfig(
        num_blocks=cache // 16,
        block_size=16,
        max_num_seqs=rows,
        max_num_batched_tokens=rows * (ROOT + BRANCH + LEAF),
        max_model_len=2048,
    )
    scheduler = Scheduler(config, discipline("paceline", order).with_knobs(knobs or {}))
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    for number, prompt in enumerate(prompts(seed)):
        scheduler.add(Request(id=str(number), prompt=prompt, params=params), 0.0)
    started: list[int] = []
    steps = 0
    while scheduler.has_work():
        plan = scheduler.schedule(float(steps))
        assert plan is not None and scheduler.step is not None
        started += [sequence.number for sequence in scheduler.step.new]
        scheduler.complete(StepResult(tokens=np.zeros(int(plan.samples.sum()), np.int32)), float(steps))
        steps += 1
    totals = scheduler.totals
    place = np.argsort(started)
    return {
        "order": order,
        "hit_rate": round(totals.prefix_hit_tokens / totals.prefix_query_tokens, 4),
        "steps": steps,
        "later": int(np.max(place - np.arange(place.size))),  # places the worst came after its turn
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", default="fcfs,lpm,dfs,hrrn,dlpm", help="comma separated, of " + ", ".join(ORDERS))
    parser.add_argument("--cache", type=int, default=16_384, help="tokens")
    parser.add_argument("--rows", type=int, default=8, help="prompts a step")
    parser.add_argument("--knobs", default="{}", help="JSON: knobs of the order")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [play(name, json.loads(options.knobs), options.cache, options.rows) for name in options.orders.split(",")]
    if options.json:
        print(json.dumps({"benchmark": "hit_rate", "cache": options.cache, "rows": options.rows, "results": results}))
        return
    print(f"{'order':<10}{'hit rate':>10}{'steps':>8}{'places late':>13}")
    for result in results:
        print(f"{result['order']:<10}{result['hit_rate']:>10}{result['steps']:>8}{result['later']:>13}")


if __name__ == "__main__":
    main()
