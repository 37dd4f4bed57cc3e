"""What a radix cache does, by example. Blocks of 4 tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from paceline.kv.interface import KVCache, Lease
from paceline.kv.radix import RadixCache

SIZE = 4


class Running(NamedTuple):
    lease: Lease
    table: np.ndarray
    hit: int


def key(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def run(cache: RadixCache, tokens: list[int], length: int | None = None, namespace: bytes = b"") -> Running:
    """A sequence whose full blocks are all scheduled in this step; its match may use `length` tokens."""
    match = cache.match(key(tokens), len(tokens) if length is None else length, namespace)
    lease = cache.open(match, namespace)
    missing = -(-len(tokens) // SIZE) - len(match.blocks)
    table = np.array([*match.blocks, *cache.allocate(missing)], np.int32)
    cache.register(lease, np.array(tokens, np.int32), table, len(tokens) // SIZE)
    return Running(lease, table, match.length)


def leave(cache: RadixCache, *running: Running) -> None:
    for one in running:
        cache.release(one.lease, one.table)


def seen(cache: RadixCache, tokens: list[int], namespace: bytes = b"") -> int:
    return cache.match(key(tokens), len(tokens), namespace).length


def check(cache: RadixCache, *running: Running) -> None:
    cache.check([(one.lease, one.table.tolist()) for one in running])


@pytest.fixture
def cache() -> RadixCache:
    return RadixCache(16, SIZE)


def test_it_is_a_kv_cache(cache: RadixCache) -> None:
    it: KVCache = cache
    assert (it.num_blocks, it.block_size, it.free, it.available) == (16, SIZE, 16, 16)


def test_sequences_share_whole_blocks_of_a_common_prefix(cache: RadixCache) -> None:
    first = run(cache, [*range(8), 100, 101, 102, 103])
    second = run(cache, [*range(8), 200, 201, 202, 203])
    assert second.hit == 8
    assert list(second.table[:2]) == list(first.table[:2])
    assert cache.free == 16 - 4
    check(cache, first, second)
    leave(cache, first)
    check(cache, second)
    assert (cache.free, cache.available) == (12, 13)
    leave(cache, second)
    assert (cache.free, cache.available) == (12, 16)


def test_a_twin_in_the_same_step_hits_blocks_that_are_only_scheduled(cache: RadixCache) -> None:
    first = run(cache, list(range(9)))
    twin = run(cache, list(range(9)), length=8)
    assert twin.hit == 8
    assert list(twin.table[:2]) == list(first.table[:2])
    assert twin.table[2] != first.table[2]
    check(cache, first, twin)


def test_a_hit_may_end_inside_a_block_written_by_an_earlier_step(cache: RadixCache) -> None:
    first = run(cache, list(range(12)))
    leave(cache, first)
    cache.begin_step()
    middle = cache.match(key([0, 1, 2, 3, 4, 5, 6, 99]), 8)
    assert (middle.length, list(middle.blocks), middle.tail_block) == (7, [first.table[0]], first.table[1])
    start = cache.match(key([0, 1, 99]), 3)
    assert (start.length, list(start.blocks), start.tail_block) == (2, [], first.table[0])
    limited = cache.match(key(list(range(12))), 11)
    assert (limited.length, limited.tail_block) == (11, first.table[2])


def test_no_hit_ends_inside_a_block_of_the_current_step(cache: RadixCache) -> None:
    run(cache, list(range(8)))
    assert seen(cache, [0, 1, 2, 3, 4, 99]) == 4
    before = cache.generation
    cache.begin_step()
    assert cache.generation != before
    assert seen(cache, [0, 1, 2, 3, 4, 99]) == 5


def test_the_tail_comes_from_a_written_neighbour_when_a_closer_one_is_unwritten(cache: RadixCache) -> None:
    old = run(cache, [1, 2, 70, 70])
    cache.begin_step()
    run(cache, [1, 2, 3, 50], length=0)
    match = cache.match(key([1, 2, 3, 4]), 4)
    assert (match.length, match.tail_block) == (2, old.table[0])


def test_an_edge_that_shrank_and_grew_again_in_one_step_gives_no_unwritten_tail() -> None:
    cache = RadixCache(4, SIZE)
    leave(cache, run(cache, list(range(8))))
    cache.begin_step()
    leave(cache, run(cache, list(range(12))))
    cache.allocate(3)  # takes two blocks off the edge
    lease = cache.open(cache.match(key(list(range(4))), 4))
    cache.release(cache.open(cache.match(b"", 0)), np.array([3], np.int32))
    table = np.array([lease.node.blocks[0], *cache.allocate(1)], np.int32)
    cache.register(lease, np.array([0, 1, 2, 3, 50, 51, 52, 53], np.int32), table, 2)
    assert seen(cache, [0, 1, 2, 3, 50, 99]) == 4


def test_generated_blocks_are_found_and_grow_one_edge(cache: RadixCache) -> None:
    tokens = np.arange(40, dtype=np.int32)
    lease = cache.open(cache.match(tokens.tobytes(), 3))
    table = np.array(cache.allocate(10), np.int32)
    for whole in range(1, 11):
        cache.begin_step()
        cache.register(lease, tokens, table, whole)
        assert len(lease.node.blocks) == whole
    assert cache.match(tokens.tobytes(), 40).length == 40
    # written blocks of the growing edge give tail hits, the newest one does not
    assert cache.match(tokens.tobytes(), 35).length == 35
    assert cache.match(tokens.tobytes(), 39).length == 36


def test_blocks_computed_twice_stay_private_and_hold_the_cached_twin(cache: RadixCache) -> None:
    first = run(cache, list(range(8)))
    cache.begin_step()
    second = run(cache, list(range(8)), length=4)
    assert second.hit == 4
    assert second.table[1] != first.table[1]
    assert second.lease.shadow == [first.table[1]]
    check(cache, first, second)
    leave(cache, first)
    assert cache.available == 16 - 3  # the shadow holds the twin
    check(cache, second)
    leave(cache, second)
    assert (cache.free, cache.available) == (14, 16)  # the private block is free at once
    check(cache)


def test_blocks_computed_twice_in_one_step_can_be_taken_out_again(cache: RadixCache) -> None:
    first = run(cache, list(range(8)))
    second = run(cache, list(range(12)), length=4)
    assert second.lease.registered == 1  # the second block of `first` is not written yet
    cache.unregister(first.lease, first.table, 1)
    assert seen(cache, list(range(12))) == 4
    cache.begin_step()
    cache.register(second.lease, np.arange(12, dtype=np.int32), second.table, 3)
    assert seen(cache, list(range(12))) == 12
    check(cache, first, second)


def test_blocks_nobody_holds_give_way_to_those_of_a_running_sequence(cache: RadixCache) -> None:
    leave(cache, run(cache, list(range(8))))
    cache.begin_step()
    alone = run(cache, list(range(8)), length=0)
    assert (cache.free, cache.available) == (14, 14)  # two blocks hold the text, not four
    assert list(cache.match(key(list(range(8))), 8).blocks) == alone.table.tolist()
    check(cache, alone)


def test_unregistered_blocks_are_never_hit_and_still_belong_to_the_sequence(cache: RadixCache) -> None:
    one = run(cache, list(range(12)))
    cache.unregister(one.lease, one.table, 1)
    assert seen(cache, list(range(12))) == 4
    check(cache, one)
    leave(cache, one)
    assert (cache.free, cache.available) == (15, 16)


def test_unregister_refuses_blocks_another_sequence_uses(cache: RadixCache) -> None:
    first = run(cache, list(range(8)))
    second = run(cache, [*range(8), 9, 9, 9, 9])
    with pytest.raises(RuntimeError, match="another sequence refers to it"):
        cache.unregister(first.lease, first.table, 1)
    check(cache, first, second)
    cache.unregister(second.lease, second.table, 2)
    leave(cache, second)
    cache.unregister(first.lease, first.table, 1)
    assert seen(cache, list(range(8))) == 4
    check(cache, first)


def test_unregister_takes_a_cached_continuation_along(cache: RadixCache) -> None:
    first = run(cache, list(range(8)))
    leave(cache, run(cache, [*range(8), 9, 9, 9, 9]))
    cache.unregister(first.lease, first.table, 1)
    assert seen(cache, [*range(8), 9, 9, 9, 9]) == 4
    assert cache.available == cache.free == 16 - 2
    check(cache, first)


def test_eviction_takes_single_blocks_from_the_tail_of_the_oldest_leaf() -> None:
    cache = RadixCache(6, SIZE)
    old = run(cache, [1] * 12)
    new = run(cache, [2] * 12)
    leave(cache, old, new)
    assert cache.allocate(1) == [old.table[2]]
    assert (seen(cache, [1] * 12), seen(cache, [2] * 12)) == (8, 12)
    assert cache.allocate(3) == [old.table[1], old.table[0], new.table[2]]
    assert (seen(cache, [1] * 12), seen(cache, [2] * 12)) == (0, 8)


def test_what_was_used_again_is_evicted_later() -> None:
    cache = RadixCache(6, SIZE)
    old, new = run(cache, [1] * 12), run(cache, [2] * 12)
    leave(cache, old, new)
    leave(cache, run(cache, [1] * 12))
    assert cache.allocate(3) == list(new.table[::-1])


def test_a_shared_prefix_outlives_its_continuations() -> None:
    cache = RadixCache(4, SIZE)
    first = run(cache, [0] * 8 + [1] * 4)
    second = run(cache, [0] * 8 + [2] * 4)
    leave(cache, first, second)
    assert cache.allocate(2) == [first.table[2], second.table[2]]
    assert seen(cache, [0] * 8) == 8
    assert cache.allocate(2) == [first.table[1], first.table[0]]


def test_held_blocks_are_never_evicted() -> None:
    cache = RadixCache(4, SIZE)
    one = run(cache, [0] * 8)
    leave(cache, run(cache, [0] * 8 + [1] * 8))
    with pytest.raises(ValueError, match="cannot allocate 3 blocks: 2 of 4 are available"):
        cache.allocate(3)
    cache.allocate(2)
    assert seen(cache, [0] * 8 + [1] * 8) == 8
    leave(cache, one)


def test_idle_counts_the_blocks_a_hit_would_take_from_the_available_ones(cache: RadixCache) -> None:
    leave(cache, run(cache, list(range(16))))
    first = run(cache, [*range(8), 99])
    match = cache.match(key(list(range(16))), 16)
    assert (len(match.blocks), match.idle) == (4, 2)
    available = cache.available
    lease = cache.open(match)
    assert cache.available == available - 2
    cache.release(lease, np.array(match.blocks, np.int32))
    leave(cache, first)


def test_namespaces_share_nothing_and_leave_no_trace(cache: RadixCache) -> None:
    one = run(cache, list(range(8)), namespace=b"a")
    assert seen(cache, list(range(8))) == seen(cache, list(range(8)), b"b") == 0
    assert seen(cache, list(range(8)), b"a") == 8
    leave(cache, one)
    cache.allocate(16)
    assert not cache.roots


def test_a_match_survives_a_split_but_not_an_eviction(cache: RadixCache) -> None:
    tokens = list(range(16))
    leave(cache, run(cache, tokens))
    match = cache.match(key(tokens), 8)
    splitter = run(cache, tokens[:12])
    lease = cache.open(match)
    cache.release(lease, np.array(match.blocks, np.int32))
    leave(cache, splitter)
    cache.allocate(16)
    with pytest.raises(ValueError, match="stale"):
        cache.open(match)


def test_reset_forgets_everything_and_frees_what_nobody_holds(cache: RadixCache) -> None:
    leave(cache, run(cache, list(range(8))))
    assert cache.reset()
    assert cache.free == 16
    assert seen(cache, list(range(8))) == 0


def test_sequences_run_on_across_a_reset_without_entering_anything(cache: RadixCache) -> None:
    tokens = list(range(12))
    first, second = run(cache, tokens[:8]), run(cache, tokens[:8])
    assert not cache.reset()
    assert seen(cache, tokens) == 0
    grown = Running(first.lease, np.array([*first.table, *cache.allocate(1)], np.int32), 0)
    cache.register(grown.lease, np.array(tokens, np.int32), grown.table, 3)
    assert seen(cache, tokens) == 0
    check(cache, grown, second)
    leave(cache, grown)
    assert cache.free == 14
    leave(cache, second)
    assert cache.free == 16
    check(cache)


def test_disabled_nothing_is_ever_found() -> None:
    cache = RadixCache(8, SIZE, enable=False)
    one = run(cache, list(range(8)))
    cache.begin_step()
    assert seen(cache, list(range(8))) == 0
    check(cache, one)
    leave(cache, one)
    assert cache.free == 8


def test_a_lease_cannot_be_released_twice(cache: RadixCache) -> None:
    one = run(cache, list(range(8)))
    leave(cache, one)
    with pytest.raises(ValueError, match="released before"):
        leave(cache, one)


def test_check_names_a_block_with_two_owners(cache: RadixCache) -> None:
    one = run(cache, list(range(8)))
    cache.pool.give([int(one.table[0])])
    with pytest.raises(AssertionError, match="two owners"):
        check(cache, one)


def test_check_names_a_lost_block(cache: RadixCache) -> None:
    cache.pool.take(1)
    with pytest.raises(AssertionError, match=r"without an owner: \[0\]"):
        check(cache)


@pytest.mark.parametrize(("blocks", "size"), [(0, 4), (-1, 4), (4, 0)])
def test_impossible_sizes_are_refused(blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match="is not valid"):
        RadixCache(blocks, size)


@pytest.mark.parametrize("size", [1, 16, 256])
def test_hits_are_exact_at_any_block_size(size: int) -> None:
    draw = np.random.default_rng(size)
    tokens = draw.integers(0, 50_000, 6 * size, np.int32)
    cache = RadixCache(8, size)
    lease = cache.open(cache.match(tokens.tobytes(), 0))
    cache.register(lease, tokens, np.array(cache.allocate(6), np.int32), 6)
    cache.begin_step()
    for where in {0, 1, size - 1, size, 3 * size + size // 2, 6 * size - 1}:
        if where >= len(tokens):
            continue
        other = tokens.copy()
        other[where] += 1
        assert cache.match(other.tobytes(), len(other)).length == where
        assert cache.match(tokens.tobytes(), where).length == where
