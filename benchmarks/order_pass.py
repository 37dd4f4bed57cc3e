"""What it costs to put a long queue of long prompts in order, and to take one request out of it.

    python benchmarks/order_pass.py --order hrrn --waiting 1000 --json
    python benchmarks/order_pass.py --abort --waiting 10000 --order all --json

Prompts of 4,096 tokens; groups of 100 share the first 3,072. Between two passes --changes prompts of these groups are
computed into a full cache, so that as many leave it. A pass brings every sequence's cached tokens up to date and lists
all that wait, best first. `first_ms` is the pass in which nobody was ever matched before.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from typing import Any

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import discipline
from paceline.core.orders import ORDERS
from paceline.core.params import SamplingParams
from paceline.core.request import IntArray, Request
from paceline.core.scheduler import Scheduler

BLOCK, LENGTH, SHARED, GROUP = 16, 4096, 3072, 100


class Prompts:
    """Deterministic prompts; `number // GROUP` decides their first three quarters."""

    def __init__(self, groups: int) -> None:
        self.random = np.random.default_rng(0)
        self.groups = [self.text(SHARED) for _ in range(groups)]

    def text(self, length: int) -> IntArray:
        return self.random.integers(0, 100_000, length).astype(np.int32)

    def one(self, group: int) -> IntArray:
        return np.concatenate([self.groups[group % len(self.groups)], self.text(LENGTH - SHARED)])


def queue(order: str, waiting: int, prompts: Prompts, spare: int) -> Scheduler:
    """A scheduler with a queue, and a cache for the common parts of half of the groups and `spare` prompts."""
    blocks = len(prompts.groups) // 2 * SHARED // BLOCK + spare * LENGTH // BLOCK
    config = SchedulerConfig(
        num_blocks=blocks, block_size=BLOCK, max_num_seqs=1, max_num_batched_tokens=LENGTH, max_model_len=LENGTH + 64
    )
    scheduler = Scheduler(config, discipline("paceline", order))
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    for number in range(waiting):
        scheduler.add(Request(id=str(number), prompt=prompts.one(number // GROUP), params=params), 0.0)
    return scheduler


def compute(scheduler: Scheduler, tokens: IntArray) -> None:
    """Put a prompt into the cache, as a sequence that came and went does."""
    kv = scheduler.kv
    match = kv.match(tokens.tobytes(), tokens.size - 1)
    blocks = np.array([*match.blocks, *([0] * (tokens.size // BLOCK - len(match.blocks)))], np.int32)
    lease = kv.open(match)
    blocks[len(match.blocks) :] = kv.allocate(blocks.size - len(match.blocks))
    kv.register(lease, tokens, blocks, blocks.size)
    kv.release(lease, blocks)


def one_pass(scheduler: Scheduler) -> float:
    """Milliseconds."""
    order: Any = scheduler.waiting
    begin = time.perf_counter_ns()
    if (hook := getattr(order, "begin", None)) is not None:
        hook(scheduler.builder, 0.0)
    everybody = list(order)
    spent = (time.perf_counter_ns() - begin) / 1e6
    assert len(everybody) == len(order)
    return spent


def passes(order: str, waiting: int, changes: int, spare: int, count: int) -> dict[str, Any]:
    prompts = Prompts(max(waiting // GROUP, 2))
    scheduler = queue(order, waiting, prompts, spare)
    for number in range(64):
        compute(scheduler, prompts.one(number))
    first = one_pass(scheduler)
    gc.collect()
    gc.disable()
    still = [one_pass(scheduler) for _ in range(count)]
    changed = []
    for number in range(count):
        for change in range(changes):
            compute(scheduler, prompts.one(number * changes + change))
        changed.append(one_pass(scheduler))
    gc.enable()
    return {
        "order": order,
        "waiting": waiting,
        "changes": changes,
        "spare": spare,
        "first_ms": round(first, 3),
        "unchanged_ms": round(statistics.median(still), 3),
        "changed_ms": round(statistics.median(changed), 3),
        "changed_worst_ms": round(max(changed), 3),
    }


def aborts(order: str, waiting: int, count: int) -> dict[str, Any]:
    prompts = Prompts(max(waiting // GROUP, 2))
    scheduler = queue(order, waiting, prompts, 1)
    one_pass(scheduler)
    victims = np.random.default_rng(1).permutation(waiting)[:count].tolist()
    gc.collect()
    gc.disable()
    spent = []
    for victim in victims:
        begin = time.perf_counter_ns()
        ended = scheduler.abort(str(victim), 0.0)  # kept until the clock stands: freeing a prompt is not the order's
        spent.append((time.perf_counter_ns() - begin) / 1e3)
        assert len(ended) == 1
    gc.enable()
    return {
        "order": order,
        "waiting": waiting,
        "abort_us": round(statistics.median(spent), 2),
        "abort_p99_us": round(sorted(spent)[int(len(spent) * 0.99)], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", default="hrrn", choices=[*ORDERS, "all"])
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=4, help="prompts computed between two passes")
    parser.add_argument(
        "--spare", type=int, default=32, help="prompts the cache holds; with 1, whole groups come and go"
    )
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--abort", action="store_true", help="measure aborts instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = list(ORDERS) if options.order == "all" else [options.order]
    if options.abort:
        results = [aborts(name, options.waiting, min(options.waiting // 2, 1000)) for name in names]
    else:
        results = [passes(name, options.waiting, options.changes, options.spare, options.passes) for name in names]
    if options.json:
        print(json.dumps({"benchmark": "order_pass", "statistic": "p50", "results": results}))
        return
    for result in results:
        print("  ".join(f"{key} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
