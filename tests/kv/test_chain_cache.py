"""The chain cache hits, evicts and reuses blocks exactly as a list and a dictionary of whole prefixes would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.kv.chain import ChainCache
from paceline.kv.interface import IntArray, KVCache, Lease

BLOCK = 4


class Sequence:
    """A sequence as a scheduler would drive it: match, open, allocate, register, release."""

    def __init__(self, cache: KVCache, tokens: list[int], namespace: bytes = b"", limit: int | None = None) -> None:
        self.cache = cache
        self.tokens = np.array(tokens, np.int32)
        length = len(tokens) - 1 if limit is None else limit
        match = cache.match(self.tokens.tobytes(), length, namespace)
        self.hit = match.length
        self.lease: Lease = cache.open(match, namespace)
        self.table = list(match.blocks)

    @property
    def row(self) -> IntArray:
        return np.array(self.table, np.int32)

    def compute(self, length: int | None = None) -> Sequence:
        """Schedule the tokens up to `length` (all): take the blocks, then register the full ones."""
        length = len(self.tokens) if length is None else length
        self.table += self.cache.allocate(-(-length // BLOCK) - len(self.table))
        self.cache.register(self.lease, self.tokens, self.row, length // BLOCK)
        return self

    def release(self) -> None:
        self.cache.release(self.lease, self.row)


def test_blocks_are_given_in_order_of_their_number_at_first() -> None:
    assert ChainCache(5, BLOCK).allocate(3) == [0, 1, 2]


def test_more_than_available_is_refused_and_changes_nothing() -> None:
    cache = ChainCache(2, BLOCK)
    with pytest.raises(ValueError, match="3 blocks asked for, 2 available"):
        cache.allocate(3)
    assert cache.allocate(2) == [0, 1]


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ChainCache(0, BLOCK)


def test_a_twin_hits_what_was_registered_a_moment_ago() -> None:
    cache = ChainCache(8, BLOCK)
    first = Sequence(cache, list(range(10))).compute()
    twin = Sequence(cache, list(range(10)))
    assert twin.hit == 8
    assert twin.table == first.table[:2]
    cache.check([(first.lease, first.table), (twin.lease, twin.table)])


def test_the_last_block_of_an_exact_multiple_is_computed_again_and_kept_beside_the_first() -> None:
    cache = ChainCache(8, BLOCK)
    first = Sequence(cache, list(range(8))).compute()
    twin = Sequence(cache, list(range(8))).compute()
    assert twin.hit == 4
    assert twin.table[1] != first.table[1]
    longer = Sequence(cache, list(range(9)))
    assert longer.table == first.table, "of two blocks with one content, the first registered is returned"
    for sequence in (longer, first, twin):
        sequence.release()
    cache.allocate(cache.free)  # only cached blocks are left: first's second block is the next to go
    cache.allocate(1)
    assert Sequence(cache, list(range(9))).table == [0, 2], "then the other takes its place"


def test_a_match_ends_with_the_last_full_block_inside_the_limit() -> None:
    cache = ChainCache(8, BLOCK)
    Sequence(cache, list(range(12))).compute()
    assert Sequence(cache, list(range(12)), limit=12).hit == 12
    assert Sequence(cache, list(range(12)), limit=11).hit == 8
    assert Sequence(cache, list(range(3)), limit=3).hit == 0
    match = cache.match(np.arange(12, dtype=np.int32).tobytes(), 11)
    assert (match.tail_block, match.idle) == (-1, 0)


def test_namespaces_share_nothing() -> None:
    cache = ChainCache(8, BLOCK)
    Sequence(cache, list(range(9)), b"a").compute()
    assert Sequence(cache, list(range(9)), b"b").hit == 0
    assert Sequence(cache, list(range(9))).hit == 0
    assert Sequence(cache, list(range(9)), b"a").hit == 8


def test_the_same_block_after_another_beginning_is_no_hit() -> None:
    cache = ChainCache(8, BLOCK)
    Sequence(cache, [1, 1, 1, 1, 5, 5, 5, 5]).compute()
    assert Sequence(cache, [2, 2, 2, 2, 5, 5, 5, 5, 0]).hit == 0
    assert Sequence(cache, [5, 5, 5, 5, 0]).hit == 0


def test_released_blocks_are_reused_unindexed_first_then_the_deepest_of_the_longest_unused() -> None:
    cache = ChainCache(6, BLOCK)
    old = Sequence(cache, list(range(8))).compute()  # blocks 0 1, both full
    new = Sequence(cache, list(range(50, 59))).compute()  # blocks 2 3 full, 4 partly
    old.release()
    new.release()
    assert (cache.available, cache.free) == (6, 2)
    assert cache.allocate(6) == [4, 5, 1, 0, 3, 2]
    assert (cache.available, cache.free) == (0, 0)


def test_of_several_unindexed_blocks_the_deepest_comes_first() -> None:
    cache = ChainCache(6, BLOCK)
    lease = cache.open(cache.match(b"", 0))
    cache.release(lease, np.array(cache.allocate(3), np.int32))
    assert cache.allocate(6) == [2, 1, 0, 3, 4, 5]


def test_a_hit_renews_a_block_only_when_it_is_released_again() -> None:
    cache = ChainCache(4, BLOCK)
    for start in (0, 10):
        Sequence(cache, list(range(start, start + 8))).compute().release()
    hit = Sequence(cache, list(range(5)))
    assert hit.table == [0]
    assert cache.available == 3
    hit.release()
    assert cache.allocate(4) == [1, 3, 2, 0]


def test_a_beginning_outlives_what_continues_it_even_among_twins() -> None:
    cache = ChainCache(4, BLOCK)
    twins = [Sequence(cache, list(range(8)), limit=0).compute() for _ in range(2)]  # 0 1 and 2 3
    for twin in twins:
        twin.release()
    cache.allocate(1)
    assert Sequence(cache, list(range(9))).table == [0, 3]
    assert cache.allocate(1) == [2]


def test_blocks_never_written_can_be_taken_out_again() -> None:
    cache = ChainCache(8, BLOCK)
    sequence = Sequence(cache, list(range(16))).compute(8)
    sequence.compute(14)
    assert sequence.lease.registered == 3
    cache.unregister(sequence.lease, sequence.row, 2)
    assert sequence.lease.registered == 2
    cache.check([(sequence.lease, sequence.table)])
    assert cache.match(sequence.tokens.tobytes(), 15).length == 8
    sequence.release()
    assert (cache.available, cache.free) == (8, 6), "the blocks taken out are free, not cached"
    assert cache.allocate(2) == [3, 2]


def test_a_sequence_goes_on_registering_after_blocks_were_taken_out() -> None:
    cache = ChainCache(8, BLOCK)
    sequence = Sequence(cache, list(range(12))).compute()
    cache.unregister(sequence.lease, sequence.row, 0)
    cache.unregister(sequence.lease, sequence.row, 0)
    assert cache.match(sequence.tokens.tobytes(), 12).length == 0
    sequence.compute()
    assert cache.match(sequence.tokens.tobytes(), 12).length == 12


def test_reset_forgets_everything_but_the_order_of_reuse() -> None:
    cache = ChainCache(4, BLOCK)
    Sequence(cache, list(range(8))).compute().release()
    assert cache.reset()
    assert (cache.available, cache.free) == (4, 4)
    assert cache.match(np.arange(9, dtype=np.int32).tobytes(), 8).length == 0
    assert cache.allocate(4) == [2, 3, 1, 0]


def test_what_a_sequence_computes_after_a_reset_is_not_given_to_others() -> None:
    cache = ChainCache(16, BLOCK)
    started = Sequence(cache, list(range(20))).compute(8)
    opened = Sequence(cache, list(range(50, 59)))
    assert not cache.reset()
    started.compute(20)
    opened.compute()
    fresh = Sequence(cache, list(range(8))).compute()
    assert fresh.hit == 0
    held = [(s.lease, s.table) for s in (started, opened, fresh)]
    cache.check(held)
    assert cache.match(started.tokens.tobytes(), 20).length == 8
    assert cache.match(opened.tokens.tobytes(), 8).length == 0
    started.release()
    assert cache.free == cache.available, "old blocks are free once released, not cached"


def test_without_an_index_every_block_goes_to_the_front() -> None:
    cache = ChainCache(4, BLOCK, enable=False)
    sequence = Sequence(cache, list(range(9))).compute()
    assert Sequence(cache, list(range(9))).hit == 0
    cache.check([(sequence.lease, sequence.table)])
    sequence.release()
    assert (cache.available, cache.free) == (4, 4)
    assert cache.allocate(4) == [2, 1, 0, 3]


def test_the_generation_changes_when_a_match_would_come_out_differently() -> None:
    cache = ChainCache(4, BLOCK)
    tokens = np.arange(9, dtype=np.int32).tobytes()
    sequence = Sequence(cache, list(range(8)))
    seen = [cache.generation]

    def changed() -> bool:
        seen.append(cache.generation)
        return seen[-1] != seen[-2]

    sequence.compute()
    assert changed()
    cache.allocate(1)
    assert not changed()
    sequence.release()
    assert changed() and cache.match(tokens, 8).idle == 2
    lease = cache.open(cache.match(tokens, 8))
    assert changed() and cache.match(tokens, 8).idle == 0
    cache.release(lease, np.array([0, 1], np.int32))
    assert changed()
    cache.allocate(2)
    assert changed()


def test_salts_that_left_no_block_behind_cost_nothing() -> None:
    cache = ChainCache(4, BLOCK)
    for index in range(100):
        Sequence(cache, list(range(8)), str(index).encode()).compute().release()
    assert len(cache._roots) <= 2


class NaiveChain:
    """What the cache is to do, as slowly and plainly as possible."""

    def __init__(self, num_blocks: int) -> None:
        self.reuse = list(range(num_blocks))
        self.references = [0] * num_blocks
        self.holders: dict[tuple[bytes, tuple[int, ...]], list[int]] = {}

    def contents(self, block: int) -> tuple[bytes, tuple[int, ...]] | None:
        return next((key for key, blocks in self.holders.items() if block in blocks), None)

    def match(self, tokens: list[int], length: int, namespace: bytes) -> list[int]:
        hits: list[int] = []
        while (len(hits) + 1) * BLOCK <= length:
            holders = self.holders.get((namespace, tuple(tokens[: (len(hits) + 1) * BLOCK])))
            if not holders:
                break
            hits.append(holders[0])
        return hits

    def take(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self.reuse:
                self.reuse.remove(block)
            self.references[block] += 1

    def forget(self, block: int) -> None:
        key = self.contents(block)
        if key is not None:
            self.holders[key].remove(block)

    def allocate(self, count: int) -> list[int]:
        blocks = self.reuse[:count]
        for block in blocks:
            self.forget(block)
        self.take(blocks)
        return blocks

    def register(self, tokens: list[int], table: list[int], first: int, whole: int, namespace: bytes) -> None:
        for index in range(first, whole):
            key = (namespace, tuple(tokens[: (index + 1) * BLOCK]))
            self.holders.setdefault(key, []).append(table[index])

    def release(self, table: list[int]) -> None:
        idle: list[int] = []
        for block in reversed(table):
            self.references[block] -= 1
            if not self.references[block]:
                idle.append(block)
        self.reuse = (
            [b for b in idle if self.contents(b) is None]
            + self.reuse
            + [b for b in idle if self.contents(b) is not None]
        )


class Running:
    def __init__(self, tokens: list[int], namespace: bytes, table: list[int], lease: Lease) -> None:
        self.tokens, self.namespace, self.table, self.lease = tokens, namespace, table, lease
        self.computed = len(table) * BLOCK
        self.written = self.computed
        self.stale = False


NUM_BLOCKS = 12


class ChainMachine(RuleBasedStateMachine):
    """Random sequences against the naive model: every hit, every block number, every count agrees."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ChainCache(NUM_BLOCKS, BLOCK)
        self.naive = NaiveChain(NUM_BLOCKS)
        self.running: list[Running] = []

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6).flatmap(
            lambda stems: st.integers(1, BLOCK).map(
                lambda tail: [t for t in stems for _ in range(BLOCK)][: -tail or None]
            )
        ),
        namespace=st.sampled_from([b"", b"salt"]),
    )
    def start(self, tokens: list[int], namespace: bytes) -> None:
        tokens = tokens or [0]
        match = self.cache.match(np.array(tokens, np.int32).tobytes(), len(tokens) - 1, namespace)
        expected = self.naive.match(tokens, len(tokens) - 1, namespace)
        assert match.blocks == expected
        assert match.length == len(expected) * BLOCK
        assert match.idle == sum(not self.naive.references[b] for b in expected)
        self.naive.take(expected)
        self.running.append(Running(tokens, namespace, match.blocks, self.cache.open(match, namespace)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 9), written=st.booleans())
    def compute(self, data: st.DataObject, count: int, written: bool) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        sequence.tokens += [0] * max(0, sequence.computed + count - len(sequence.tokens))
        end = sequence.computed + count
        wanted = max(0, -(-end // BLOCK) - len(sequence.table))
        if wanted > self.cache.available:
            return
        blocks = self.cache.allocate(wanted)
        assert blocks == self.naive.allocate(wanted)
        sequence.table += blocks
        before = sequence.lease.registered
        row = np.array(sequence.table, np.int32)
        self.cache.register(sequence.lease, np.array(sequence.tokens, np.int32), row, end // BLOCK)
        if not sequence.stale:
            self.naive.register(sequence.tokens, sequence.table, before, end // BLOCK, sequence.namespace)
        if written:
            sequence.computed = end
        else:
            self.cache.unregister(sequence.lease, row, before)
            for block in sequence.table[before:]:
                self.naive.forget(block)
            self.leave(sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(self.running)))

    def leave(self, sequence: Running) -> None:
        self.running.remove(sequence)
        self.cache.release(sequence.lease, np.array(sequence.table, np.int32))
        self.naive.release(sequence.table)

    @rule(really=st.integers(0, 9))
    def reset(self, really: int) -> None:
        if really:
            return
        assert self.cache.reset() == (not any(self.naive.references))
        self.naive.holders.clear()
        for sequence in self.running:
            sequence.stale = True

    @invariant()
    def accounts_agree(self) -> None:
        self.cache.check([(s.lease, s.table) for s in self.running])
        assert self.cache._reuse_order() == self.naive.reuse
        assert self.cache.available == len(self.naive.reuse)
        assert self.cache.free == sum(self.naive.contents(b) is None for b in self.naive.reuse)


ChainMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestChainMachine = ChainMachine.TestCase
