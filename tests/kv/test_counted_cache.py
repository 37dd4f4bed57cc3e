"""A cache that only counts gives, finds and evicts what a radix cache does, where no two sequences begin alike."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from paceline.kv.counted import CountedCache
from paceline.kv.interface import KVCache, Lease
from paceline.kv.radix import RadixCache

SIZE = 4
BLOCKS = 40


class Life:
    """One sequence in one cache."""

    def __init__(self, cache: KVCache, tokens: np.ndarray) -> None:
        self.cache, self.tokens = cache, tokens
        self.lease: Lease | None = None
        self.table: list[int] = []

    def start(self, known: int) -> tuple[int, int]:
        match = self.cache.match(self.tokens[:known].tobytes(), known - 1)
        self.lease = self.cache.open(match)
        self.table = list(match.blocks)
        return match.length, match.idle

    def grow(self, count: int, registered: int) -> None:
        assert self.lease is not None
        self.table += self.cache.allocate(count)
        self.cache.register(self.lease, self.tokens, np.array(self.table, np.int32), registered)

    def take_back(self, registered: int) -> None:
        assert self.lease is not None
        self.cache.unregister(self.lease, np.array(self.table, np.int32), registered)

    def leave(self) -> None:
        assert self.lease is not None
        self.cache.release(self.lease, np.array(self.table, np.int32))
        self.lease, self.table = None, []


def prompts(count: int) -> list[np.ndarray]:
    tokens = [np.full(10 * SIZE, 7, np.int32) for _ in range(count)]
    for index, one in enumerate(tokens):
        one[:2] = index, 1000 - index
    return tokens


@pytest.mark.parametrize("seed", range(40))
def test_it_counts_what_a_radix_cache_has(seed: int) -> None:
    random, tokens = Random(seed), prompts(24)
    caches: tuple[KVCache, KVCache] = (RadixCache(BLOCKS, SIZE), CountedCache(BLOCKS, SIZE))
    lives = [[Life(cache, one) for one in tokens] for cache in caches]
    running: set[int] = set()
    left: dict[int, int] = {}  # blocks that sequences had when they left
    for _ in range(300):
        radix, counted = caches
        at = random.randrange(len(tokens))
        pair = [side[at] for side in lives]
        for cache in caches:
            cache.begin_step()
        held = len(pair[0].table)
        if at not in running:
            known = left.pop(at, 0) * SIZE + 1  # who comes back knows what it left, and one token more at least
            known += random.randrange(10 * SIZE - known + 1)
            assert pair[0].start(known) == pair[1].start(known)
            running.add(at)
        elif random.random() < 0.3:
            assert pair[0].lease is not None
            left[at] = min(pair[0].lease.registered, 9)
            for life in pair:
                life.leave()
            running.discard(at)
        elif random.random() < 0.1:
            assert pair[0].lease is not None
            fewer = random.randrange(pair[0].lease.registered + 1)
            for life in pair:
                life.take_back(fewer)
        else:
            count = min(random.randrange(4), counted.available, 9 - held)
            registered = random.randrange(held + count + 1)
            for life in pair:
                life.grow(count, registered)
        assert (radix.available, radix.free) == (counted.available, counted.free)
        for side, cache in zip(lives, caches, strict=True):
            cache.check([(one.lease, one.table) for one in side if one.lease is not None])
    for at in running:
        for side in lives:
            side[at].leave()
    assert [cache.available for cache in caches] == [BLOCKS, BLOCKS]


def test_what_was_left_behind_is_forgotten_by_a_reset() -> None:
    cache, tokens = CountedCache(8, SIZE), prompts(2)
    stays, left = Life(cache, tokens[0]), Life(cache, tokens[1])
    for life in (stays, left):
        life.start(12)
        life.grow(3, 3)
    left.leave()
    assert cache.match(tokens[1].tobytes(), 12).length == 12 and cache.free == 2
    assert not cache.reset()
    assert cache.match(tokens[1].tobytes(), 12).length == 0 and cache.free == 5
    stays.leave()
    assert cache.match(tokens[0].tobytes(), 12).length == 0 and cache.free == 8


def test_more_than_there_is_and_leaving_twice_are_refused() -> None:
    cache = CountedCache(8, SIZE)
    with pytest.raises(ValueError, match="9 blocks: 8 of 8"):
        cache.allocate(9)
    lease = cache.open(cache.match(b"", 0))
    cache.release(lease, np.zeros(0, np.int32))
    with pytest.raises(ValueError, match="released before"):
        cache.release(lease, np.zeros(0, np.int32))


def test_what_is_evicted_is_told_by_the_name_its_match_gave() -> None:
    cache, tokens = CountedCache(8, SIZE), prompts(1)
    life = Life(cache, tokens[0])
    life.start(12)
    life.grow(3, 3)
    life.leave()
    match = cache.match(tokens[0].tobytes(), 12)
    cache.changes = []
    cache.allocate(6)
    assert cache.changes == [match.blocks[-1]]
    with pytest.raises(ValueError, match="stale"):
        cache.open(match)
