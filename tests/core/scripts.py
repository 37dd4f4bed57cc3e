"""Whole runs as data, random ones among them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.evictions import VICTIMS
from paceline.errors import ConfigError
from tests.core.asks import EOS, VOCABULARY, Ask
from tests.core.world import World


@dataclass(frozen=True)
class Script:
    """A whole run as data: prints well, and plays again from its own repr."""

    config: SchedulerConfig
    discipline: str
    order: str
    before: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)  # turn -> actions before schedule()
    mid: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)  # turn -> between schedule() and complete()
    fails: frozenset[int] = frozenset()
    seconds: float = 1.0
    knobs: Mapping[str, Any] = field(default_factory=dict)
    victim: str | None = None
    block_seconds: float = 0.0
    damaged: int = 0

    @property
    def turns(self) -> int:
        return max([0, *(turn + 1 for turn in (*self.before, *self.mid, *self.fails))])

    def play(self) -> World:
        world = World(
            self.config, self.discipline, self.order, self.knobs, self.victim, self.block_seconds, self.damaged
        )
        for turn in range(self.turns):
            world.turn(self.before.get(turn, ()), self.mid.get(turn, ()), turn in self.fails, self.seconds)
        world.drain()
        return world


def sensible(config: SchedulerConfig, discipline: str) -> SchedulerConfig:
    """The settings with those changed that the discipline insists on."""
    pinned = {name: value for name, (value, _) in discipline_named(discipline).fixed.items()}
    if pinned.get("enable_chunked_prefill") is False:
        pinned["max_num_batched_tokens"] = max(config.max_num_batched_tokens, config.max_model_len)
    return replace(config, **pinned)


def makes_sense(discipline: str, order: str) -> bool:
    """May the row go with the order?"""
    row = discipline_named(discipline, order)
    try:
        row.check(row.configure(num_blocks=1))
    except ConfigError:
        return False
    return True


def crowded_config(random: Random) -> SchedulerConfig:
    """Little room for many that grow: preemptions of those already scheduled, and comings back."""
    block_size = random.choice([2, 4, 8])
    max_model_len = random.choice([24, 33, 48])
    seqs = random.choice([2, 3, 4, 6])
    return SchedulerConfig(
        num_blocks=-(-max_model_len // block_size) + random.randint(0, 3),
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=random.choice([seqs, seqs + 3, 12, 48]),
        max_model_len=max_model_len,
        enable_prefix_caching=random.random() < 0.9,
        long_prefill_token_threshold=random.choice([0, 1, 3, 6]),
        scheduler_reserve_full_isl=random.random() < 0.6,
    )


def crowded_ask(random: Random, name: str, bases: list[tuple[int, ...]]) -> Ask:
    base = random.choice(bases)
    return Ask(
        id=name,
        prompt=base[: random.randint(1, min(len(base), 12))],
        max_tokens=random.randint(4, 20),
        n=random.choice([1, 1, 2, 3]),
        priority=random.choice([0, 0, 1, 3]),
        arrival=float(random.randint(0, 8)),
        seed=random.choice([None, 1, 2, 3]),
    )


def random_config(random: Random) -> SchedulerConfig:
    block_size = random.choice([1, 2, 3, 4, 4, 8])
    max_model_len = random.choice([8, 16, 33, 48])
    chunked = random.random() < 0.8
    seqs = random.choice([1, 2, 3, 4, 8])
    tokens = random.choice([1, 2, 3, 5, 8, 16, 64])
    longest = -(-max_model_len // block_size)
    return SchedulerConfig(
        num_blocks=random.choice([max(1, longest // 2), longest, longest + 1, longest + longest // 2, 3 * longest]),
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, tokens if chunked else max(tokens, max_model_len)),
        max_model_len=max_model_len,
        enable_prefix_caching=random.random() < 0.85,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=random.choice([0, 0, 0, 1, 2, 5]),
        long_prefill_token_threshold_adaptive=random.random() < 0.3,
        watermark=random.choice([0.0, 0.0, 0.1, 0.34]),
        scheduler_reserve_full_isl=random.random() < 0.7,
        eos_token_ids=random.choice([(), (EOS,)]),
    )


def random_ask(random: Random, name: str, config: SchedulerConfig, bases: list[tuple[int, ...]]) -> Ask:
    base = random.choice(bases)
    prompt = base[: random.randint(1, len(base))]
    if random.random() < 0.5:
        prompt += tuple(random.randrange(VOCABULARY) for _ in range(random.randint(1, 6)))
    if random.random() < 0.02:
        prompt = ()
    max_tokens = random.choice([1, 2, 3, 5, 8, 13, 21, None])
    n = random.choice([1, 1, 1, 1, 2, 3, 5])
    resumed = None
    if random.random() < 0.1 and prompt:
        # What a request had generated when its engine died is less than what it may generate.
        most = (
            min(max_tokens or 3, max(config.max_model_len - len(prompt), 1), config.num_blocks * config.block_size) - 1
        )
        resumed = tuple((index, random.randint(0, max(most, 0))) for index in range(n) if random.random() < 0.7)
    ends = resumed is None and random.random() < 0.5
    return Ask(
        id=name,
        prompt=prompt,
        max_tokens=max_tokens,
        n=n,
        min_tokens=random.randint(0, max_tokens or 4) if random.random() < 0.3 else 0,
        stop_token_ids=(random.randrange(VOCABULARY),) if ends and random.random() < 0.5 else (),
        ignore_eos=not (ends and random.random() < 0.5),
        priority=random.choice([0, 0, 0, 1, -1, 5]),
        arrival=float(random.randint(0, 8)),
        salt=random.choice([None, None, None, "a", "b"]),
        seed=random.choice([None, None, 1, 2]),
        prompt_logprobs=None,
        resumed=resumed,
    )


# Values that make things happen in short runs.
KNOBS = {"growth": (0, 1, 4), "most": (0, 1, 3), "window": (2, 3), "clip": (1, 2)}


def random_knobs(random: Random, discipline: str) -> dict[str, Any]:
    """Some numbers of the row changed, where they are numbers."""
    values = discipline_named(discipline).knobs()
    return {
        name: random.choice(choices)
        for name, choices in KNOBS.items()
        if type(values.get(name)) is int and values[name] > 1 and random.random() < 0.6
    } | (
        {"how": random.choice(["recompute", "swap", "swap", "hold", "auto", "threshold:6"])} if "how" in values else {}
    )


def random_script(random: Random, discipline: str, order: str) -> Script:
    crowded = random.random() < 0.5
    config = sensible(crowded_config(random) if crowded else random_config(random), discipline)
    config = replace(config, num_host_blocks=random.choice([0, 3, 8, 64]))
    longest = max(config.max_model_len * 3 // 4, 2)
    bases = [
        tuple(random.randrange(VOCABULARY) for _ in range(random.randint(1, longest)))
        for _ in range(random.randint(1, 3))
    ]
    before: dict[int, list[tuple[str, Any]]] = {}
    mid: dict[int, list[tuple[str, Any]]] = {}
    spread = random.choice([1, 4, 16])
    for number in range(random.randint(1, 9)):
        name = f"r{number}"
        ask = crowded_ask(random, name, bases) if crowded else random_ask(random, name, config, bases)
        turn = random.randrange(spread)
        (before if random.random() < 0.8 else mid).setdefault(turn, []).append(("add", ask))
        for chance, action in ((0.15, "abort"), (0.1, "finish")):
            if random.random() < chance:
                target = ask.id
                if action == "finish" and ask.n > 1 and (index := random.randrange(ask.n)):
                    target = f"{ask.id}#{index}"
                when = turn + random.randint(0, 8)
                (before if random.random() < 0.5 else mid).setdefault(when, []).append((action, target))
    if random.random() < 0.1:
        before.setdefault(random.randrange(12), []).append(("reset", None))
    fails = (
        frozenset(random.randrange(14) for _ in range(random.randint(1, 3))) if random.random() < 0.3 else frozenset()
    )
    seconds, knobs = random.choice([0.5, 1.0]), random_knobs(random, discipline)
    config = replace(
        config,
        num_disk_blocks=random.choice([0, 0, 4, 40]) if config.num_host_blocks else 0,
        kv_load=random.choice(["auto", "auto", "always", "never"]),
        max_preemptions=random.choice([0, 1, 2, 4]),
    )
    victim = random.choice([None, None, *VICTIMS])
    try:
        discipline_named(discipline, order).with_eviction(victim)
    except ConfigError:
        victim = None  # nobody yields, or it is not the row's to choose
    if order == "priority":
        knobs |= {"displace": random.random() < 0.7, "hysteresis": random.choice([0, 0, 1])}
    return Script(
        config,
        discipline,
        order,
        before,
        mid,
        fails,
        seconds,
        knobs,
        victim,
        random.choice([0.0, 0.05, 1.0]),
        random.choice([0, 2, 5]),
    )


def log_of(seeds: Iterable[int], discipline: str, order: str) -> list[str]:
    """Every decision of the scripts of these seeds."""
    return [line for seed in seeds for line in random_script(Random(seed), discipline, order).play().log]


if __name__ == "__main__":  # lines "DISCIPLINE ORDER SEED" on standard input: the decisions, to compare processes by
    played = (line.split() for line in sys.stdin)
    sys.stdout.write("\n".join(line for *pair, seed in played for line in log_of([int(seed)], *pair)))
