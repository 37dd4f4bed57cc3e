"""Which replica a request goes to. A router sees loads and keys, never a replica's inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from paceline.errors import ConfigError
from paceline.workload.requests import TimedRequest


class Seen(Protocol):
    """What a router sees of a replica."""

    index: int
    load: int  # requests inside
    load_tokens: int  # their prompt tokens and the tokens they may generate
    alive: bool


class Router(Protocol):
    def choose(self, request: TimedRequest, replicas: Sequence[Seen]) -> int:
        """Position in `replicas`, which are those alive, in order of index; at least one."""
        ...


@dataclass
class RoundRobin:
    """One after the other."""

    _turn: int = 0

    def choose(self, request: TimedRequest, replicas: Sequence[Seen]) -> int:
        self._turn += 1
        return (self._turn - 1) % len(replicas)


@dataclass
class LeastLoad:
    """The one with the fewest tokens inside; of equals the first."""

    def choose(self, request: TimedRequest, replicas: Sequence[Seen]) -> int:
        loads = [replica.load_tokens for replica in replicas]
        return loads.index(min(loads))


@dataclass
class PowerOfTwo:
    """The less loaded of two drawn at random (Mitzenmacher 2001): nearly as even as asking all, at any size."""

    seed: int = 0
    _random: np.random.Generator = field(init=False)
    _drawn: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def choose(self, request: TimedRequest, replicas: Sequence[Seen]) -> int:
        if len(self._drawn) < 2:
            self._drawn = self._random.random(8192).tolist()
        one, other = (int(self._drawn.pop() * len(replicas)) for _ in range(2))
        return one if replicas[one].load_tokens <= replicas[other].load_tokens else other


@dataclass
class PrefixAffinity:
    """Where the longest known prefix went last, unless that replica has more than `bound` times the mean load; then,
    and for prefixes nobody has, the least loaded (consistent hashing with bounded loads, Mirrokni et al. 2018)."""

    bound: float = 1.25
    remembered: int = 200_000  # prefixes, the least recently used are forgotten
    _where: dict[int, int] = field(default_factory=dict)  # prefix -> index of a replica

    def __post_init__(self) -> None:
        if self.bound < 1:
            raise ConfigError("--load-bound", self.bound, "at least 1")

    def choose(self, request: TimedRequest, replicas: Sequence[Seen]) -> int:
        prefixes: list[int] = []
        prefix = 0
        for key, length in request.parts:
            prefix = hash((prefix, key, length))  # of whole numbers: the same in any process
            prefixes.append(prefix)
        loads = [replica.load_tokens for replica in replicas]
        size = request.prompt_len + request.output_len
        most = self.bound * (sum(loads) + size) / len(loads) + size
        least = chosen = loads.index(min(loads))
        where = self._where
        for prefix in reversed(prefixes):
            index = where.get(prefix)
            if index is None:
                continue
            position = next((at for at, replica in enumerate(replicas) if replica.index == index), least)
            chosen = position if loads[position] + size <= most else least
            break
        for prefix in prefixes:
            where.pop(prefix, None)
            where[prefix] = replicas[chosen].index
        while len(where) > self.remembered:
            del where[next(iter(where))]
        return chosen


@dataclass
class SessionAffinity:
    """A conversation stays where its first turn went, which is the least loaded replica."""

    _where: dict[str, int] = field(default_factory=dict)

    def choose(self, request: TimedRequest, replicas: Sequence[Seen]) -> int:
        index = self._where.get(request.session) if request.session else None
        for at, replica in enumerate(replicas):
            if replica.index == index:
                return at
        loads = [replica.load_tokens for replica in replicas]
        chosen = loads.index(min(loads))
        if request.session:
            self._where[request.session] = replicas[chosen].index
        return chosen


ROUTERS: dict[str, Callable[[int], Router]] = {
    "round-robin": lambda seed: RoundRobin(),
    "least-load": lambda seed: LeastLoad(),
    "power-of-two": lambda seed: PowerOfTwo(seed),
    "prefix": lambda seed: PrefixAffinity(),
    "session": lambda seed: SessionAffinity(),
}


def router(name: str, seed: int = 0) -> Router:
    """A fresh router. ConfigError for a name not in ROUTERS."""
    if name not in ROUTERS:
        raise ConfigError("--router", name, "one of " + ", ".join(ROUTERS))
    return ROUTERS[name](seed)
