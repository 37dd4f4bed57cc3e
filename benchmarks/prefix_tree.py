"""What the operations of the radix cache cost at size. Groups of 100 prompts share 3 quarters of their tokens.

    python benchmarks/prefix_tree.py --prompts 10000 --json

All figures are microseconds per call, median and 99th percentile of --operations calls, garbage collector off.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

import numpy as np

from paceline.kv.interface import IntArray, Lease, Match
from paceline.kv.radix import RadixCache

GROUP = 100
VOCABULARY = 128_000


class Prompts:
    """Deterministic prompts of `length` tokens; `number // GROUP` decides the first three quarters."""

    def __init__(self, length: int, block_size: int) -> None:
        self.length = length
        self.shared = length * 3 // 4 // block_size * block_size

    def tokens(self, number: int) -> IntArray:
        group = np.random.default_rng([1, number // GROUP]).integers(0, VOCABULARY, self.shared, np.int32)
        own = np.random.default_rng([2, number]).integers(0, VOCABULARY, self.length - self.shared, np.int32)
        return np.concatenate([group, own])


def enter(cache: RadixCache, tokens: IntArray) -> tuple[Lease, IntArray]:
    """A sequence with all of `tokens` computed, still running."""
    match = cache.match(tokens.tobytes(), len(tokens))
    lease = cache.open(match)
    whole = len(tokens) // cache.block_size
    table = np.array([*match.blocks, *cache.allocate(whole - len(match.blocks))], np.int32)
    cache.register(lease, tokens, table, whole)
    return lease, table


def fill(cache: RadixCache, prompts: Prompts, count: int) -> None:
    """`count` prompts, all cached, nobody running."""
    for number in range(count):
        cache.release(*enter(cache, prompts.tokens(number)))
    cache.begin_step()


def measure(calls: Iterable[tuple[Callable[..., Any], tuple[Any, ...]]], divide: int = 1) -> list[float]:
    """Microseconds of each call, sorted."""
    times = []
    for function, arguments in calls:
        start = perf_counter_ns()
        function(*arguments)
        times.append((perf_counter_ns() - start) / 1000 / divide)
    return sorted(times)


def full_cache(prompts: Prompts, count: int, spare: int, block_size: int) -> RadixCache:
    """A cache of `count` cached prompts and `spare` blocks more."""
    groups = -(-count // GROUP)
    own = (prompts.length - prompts.shared) // block_size
    cache = RadixCache(groups * prompts.shared // block_size + count * own + spare, block_size)
    fill(cache, prompts, count)
    return cache


def lookups(cache: RadixCache, prompts: Prompts, count: int, operations: int) -> dict[str, list[float]]:
    """Matches of all kinds. They change nothing. The bytes asked for are made just before, as the scheduler does."""
    draw = random.Random(3)
    cached = [prompts.tokens(draw.randrange(count)) for _ in range(operations)]
    strangers = [prompts.tokens(count + GROUP + index * GROUP) for index in range(operations)]
    siblings = []  # the shared part, then others
    near = []  # the first 8 tokens of some prompt's own part too
    for tokens in cached:
        siblings.append(tokens.copy())
        siblings[-1][prompts.shared :] += VOCABULARY
        near.append(tokens.copy())
        near[-1][prompts.shared + 8 :] += VOCABULARY

    def ask(keys: list[IntArray], length: int) -> list[float]:
        return measure((cache.match, (tokens.tobytes(), length)) for tokens in keys)

    return {
        "match_cached": ask(cached, prompts.length),
        "match_all_but_last_token": ask(cached, prompts.length - 1),
        "match_shared_part": ask(siblings, prompts.length),
        "match_inside_block": ask(near, prompts.length),
        "miss_at_root": ask(strangers, prompts.length),
    }


def changes(cache: RadixCache, prompts: Prompts, count: int, operations: int) -> dict[str, list[float]]:
    """Opening, inserting and releasing beside the full tree; needs spare blocks for `operations` inserts."""
    draw = random.Random(4)
    whole = prompts.length // cache.block_size
    times: dict[str, list[float]] = {
        name: [] for name in ("open_cached", "release_cached", "insert", "release_inserted")
    }

    def insert(match: Match, tokens: IntArray, table: IntArray) -> Lease:
        lease = cache.open(match)
        cache.register(lease, tokens, table, whole)
        return lease

    for index in range(operations):
        tokens = prompts.tokens(draw.randrange(count))
        match = cache.match(tokens.tobytes(), prompts.length)
        table = np.array(match.blocks, np.int32)
        start = perf_counter_ns()
        lease = cache.open(match)
        opened = perf_counter_ns()
        cache.release(lease, table)
        released = perf_counter_ns()
        times["open_cached"].append((opened - start) / 1000)
        times["release_cached"].append((released - opened) / 1000)

        own = prompts.tokens(count + GROUP + index)[prompts.shared :]
        tokens = np.concatenate([tokens[: prompts.shared], own])
        match = cache.match(tokens.tobytes(), prompts.length)
        table = np.array([*match.blocks, *cache.allocate(whole - len(match.blocks))], np.int32)
        start = perf_counter_ns()
        lease = insert(match, tokens, table)
        inserted = perf_counter_ns()
        cache.release(lease, table)
        released = perf_counter_ns()
        times["insert"].append((inserted - start) / 1000)
        times["release_inserted"].append((released - inserted) / 1000)
    return {name: sorted(values) for name, values in times.items()}


def decode(cache: RadixCache, prompts: Prompts, operations: int) -> dict[str, list[float]]:
    """allocate(1) + register of one block, in turn for 16 running sequences; needs `operations` spare blocks."""
    size = cache.block_size
    rounds = -(-operations // 16)
    running = []
    for number in range(16):
        tokens = np.concatenate(
            [prompts.tokens(number), prompts.tokens(10**6 + number), np.zeros(rounds * size, np.int32)]
        )
        lease, known = enter(cache, tokens[: prompts.length])
        table = np.zeros(len(tokens) // size, np.int32)
        table[: len(known)] = known
        running.append((lease, tokens, table))
    first = prompts.length // size

    def advance(lease: Lease, tokens: IntArray, table: IntArray, whole: int) -> None:
        table[whole - 1] = cache.allocate(1)[0]
        cache.register(lease, tokens, table, whole)

    times = measure((advance, (*row, first + 1 + index)) for index in range(rounds) for row in running)
    for lease, _, table in running:
        cache.release(lease, table[: first + rounds])
    return {"decode_block": times}


def evictions(cache: RadixCache, operations: int, leaf: int) -> dict[str, list[float]]:
    """Everything is cached when this begins. Microseconds per block."""
    cache.allocate(cache.free)
    operations = min(operations, cache.cached // (leaf + 1))
    return {
        "evict_one_block": measure((cache.allocate, (1,)) for _ in range(operations)),
        "evict_leaf_per_block": measure(((cache.allocate, (leaf,)) for _ in range(operations)), leaf),
    }


def run(prompts: int, length: int, block_size: int, operations: int) -> dict[str, Any]:
    """All measurements, as the JSON output has them."""
    source = Prompts(length, block_size)
    leaf = (length - source.shared) // block_size
    cache = full_cache(source, prompts, operations * (leaf + 1) + 16 * (leaf + 1), block_size)
    gc.collect()
    gc.disable()
    try:
        times = lookups(cache, source, prompts, operations)
        times |= changes(cache, source, prompts, operations)
        times |= decode(cache, source, operations)
        times |= evictions(cache, operations, leaf)
    finally:
        gc.enable()
    return {
        "prompts": prompts,
        "tokens": length,
        "shared_tokens": source.shared,
        "block_size": block_size,
        "operations": operations,
        "python": platform.python_version(),
        "unit": "microseconds",
        "p50": {name: round(values[len(values) // 2], 3) for name, values in times.items()},
        "p99": {name: round(values[len(values) * 99 // 100], 3) for name, values in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a prompt")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--operations", type=int, default=500, help="calls of each operation")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = run(options.prompts, options.tokens, options.block_size, options.operations)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{options.prompts} prompts of {options.tokens} tokens cached, blocks of {options.block_size}; microseconds")
    print(f"{'operation':<28}{'p50':>10}{'p99':>10}")
    for name, median in result["p50"].items():
        print(f"{name:<28}{median:>10.2f}{result['p99'][name]:>10.2f}")


if __name__ == "__main__":
    main()
