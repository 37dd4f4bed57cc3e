"""The tiers below the device: one owner per block, nothing found that was not written, least recently used first."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.kv.chain import ChainCache
from paceline.kv.content import extend_keys, root_key
from paceline.kv.radix import RadixCache
from paceline.kv.tiers import Tiers


def key(number: int) -> bytes:
    return number.to_bytes(20, "little")


def filled(host: int, disk: int, count: int) -> Tiers:
    """Keys 0 to `count` - 1 were demoted, in this order, each in a step of its own."""
    tiers = Tiers(host, disk)
    for number in range(count):
        tiers.begin_step()
        tiers.demote(number, key(number))
        tiers.commit()
        tiers.check([])
    tiers.begin_step()
    return tiers


def test_a_demoted_block_is_found_only_after_its_step() -> None:
    tiers = Tiers(2)
    tiers.demote(7, key(1))
    assert tiers.moves.out == [(7, 0)] and tiers.run([key(1)], 0) == (0, 0, [])
    tiers.commit()
    assert tiers.run([key(1)], 0) == (1, 1, [])
    assert not tiers.moves


def test_what_a_failed_step_was_to_write_is_not_found() -> None:
    tiers = Tiers(2, 4)
    tiers.demote(7, key(1))
    tiers.undo()
    tiers.check([])
    assert tiers.run([key(1)], 0) == (0, 0, []) and tiers.available == 2


def test_the_least_recently_used_goes_on_to_disk_and_from_there_away() -> None:
    tiers = filled(host=2, disk=2, count=5)
    assert list(tiers.cached) == [key(3), key(4)] and list(tiers.disk) == [key(1), key(2)]
    tiers.demote(9, key(9))
    assert tiers.moves.to_disk == [(tiers.moves.out[0][1], key(3))] and tiers.moves.drop == [key(1)]


def test_without_a_disk_it_goes_away_at_once() -> None:
    tiers = filled(host=2, disk=0, count=3)
    assert list(tiers.cached) == [key(1), key(2)] and not tiers.disk


def test_demoting_again_what_the_host_has_moves_nothing_and_makes_it_recent() -> None:
    tiers = filled(host=2, disk=0, count=2)
    tiers.demote(5, key(0))
    assert not tiers.moves and list(tiers.cached) == [key(1), key(0)]


def test_what_a_step_reads_is_not_given_up_in_it() -> None:
    tiers = filled(host=2, disk=0, count=2)
    blocks = tiers.pin([key(0), key(1)])
    assert sorted(blocks) == [0, 1] and tiers.available == 0
    tiers.demote(5, key(5))
    assert not tiers.moves, "there is no room for it"
    with pytest.raises(ValueError, match="host blocks asked for"):
        tiers.allocate(1)
    tiers.begin_step()
    assert tiers.available == 2


def test_swapped_sequences_take_room_from_the_cache_and_keep_it() -> None:
    tiers = filled(host=2, disk=0, count=2)
    blocks = tiers.allocate(2)
    tiers.check([blocks])
    assert not tiers.cached
    tiers.demote(5, key(5))
    assert not tiers.moves
    tiers.release(blocks)
    tiers.begin_step()
    assert tiers.available == 2


def test_a_fetched_block_is_found_on_the_host_after_its_step_unless_it_was_lost() -> None:
    tiers = filled(host=2, disk=4, count=4)
    keys = [key(0), key(1)]
    assert tiers.run(keys, 0) == (0, 2, keys)
    assert tiers.fetch(keys) == 2
    assert {name for name, _ in tiers.moves.from_disk} == set(keys)
    assert [name for _, name in tiers.moves.to_disk] == [key(2), key(3)]
    tiers.commit(lost=[key(1)])
    tiers.check([])
    assert tiers.run(keys, 0) == (1, 1, [])
    assert key(1) not in tiers.disk and key(0) in tiers.disk


def test_disk_keeps_what_is_being_read_from_it() -> None:
    tiers = filled(host=1, disk=1, count=2)
    assert tiers.fetch([key(0)]) == 1
    assert not tiers.moves.drop and not tiers.moves.to_disk


def test_flushing_writes_the_most_recent_to_disk() -> None:
    tiers = filled(host=4, disk=2, count=4)
    tiers.flush()
    assert [name for _, name in tiers.moves.to_disk] == [key(2), key(3)]
    tiers.commit()
    tiers.flush()
    assert not tiers.moves


def test_keys_tell_models_namespaces_and_whole_prefixes_apart() -> None:
    def keys(tokens: list[int], namespace: bytes = b"", identity: bytes = b"") -> list[bytes]:
        found: list[bytes] = []
        extend_keys(found, root_key(identity, namespace), np.array(tokens, np.int32).tobytes(), 8, len(tokens) // 2)
        return found

    base = keys([1, 2, 3, 4])
    assert keys([1, 2, 3, 4, 5, 6])[:2] == base
    assert base[0] == keys([1, 2])[0] and base[1] != keys([9, 9, 3, 4])[1]
    assert len({*base, *keys([1, 2, 3, 4], b"a"), *keys([1, 2, 3, 4], b"", b"a")}) == 6


class Life(RuleBasedStateMachine):
    """A cache over tiers, where the bytes are the prefixes themselves: what is found must be what was asked for."""

    cache_kind: Any = RadixCache

    @initialize(
        size=st.integers(1, 2), blocks=st.integers(2, 12), host=st.integers(0, 8), disk=st.sampled_from([0, 0, 2, 20])
    )
    def create(self, size: int, blocks: int, host: int, disk: int) -> None:
        self.size, self.disk_room = size, disk if host else 0
        self.cache = self.cache_kind(blocks, size)
        self.tiers = self.cache.lower = Tiers(host, self.disk_room, b"model")
        self.device: dict[int, Any] = {}
        self.host: dict[int, Any] = {}
        self.disk: dict[bytes, Any] = {}
        self.swapped: list[list[int]] = []

    def keys(self, namespace: bytes, tokens: tuple[int, ...]) -> list[bytes]:
        found: list[bytes] = []
        data = np.array(tokens, np.int32).tobytes()
        extend_keys(found, self.tiers.root(namespace), data, 4 * self.size, len(tokens) // self.size)
        return found

    def begin(self) -> None:
        self.cache.begin_step()
        self.tiers.begin_step()

    def end(self, random: Random, fails: bool) -> None:
        """Execute the moves, or not."""
        moves = self.tiers.moves
        if fails:
            self.tiers.undo()
            return
        read = {block: self.device.get(block) for block, _ in moves.out}
        for name in moves.drop:
            self.disk.pop(name, None)
        written = {name: self.host[block] for block, name in moves.to_disk}
        lost = [name for name, _ in moves.from_disk if random.random() < 0.3]
        for name, block in moves.from_disk:
            self.host[block] = self.disk[name]
        self.disk.update(written)
        for block, host in moves.out:
            self.host[host] = read[block]
        self.tiers.commit(lost)

    @rule(seed=st.integers(0, 2**32 - 1), fails=st.booleans())
    def serve(self, seed: int, fails: bool) -> None:
        """A sequence comes, uses what there is of its prefix, computes the rest and leaves."""
        random = Random(seed)
        self.begin()
        namespace = random.choice([b"", b"", b"other"])
        tokens = tuple(random.randint(0, 1) for _ in range(random.randint(1, 6) * self.size))
        whole = len(tokens) // self.size
        match = self.cache.match(np.array(tokens, np.int32).tobytes(), len(tokens), namespace)
        device = list(match.blocks)
        names = self.keys(namespace, tokens)
        near, count, missing = self.tiers.run(names, len(device))
        assert near <= count and len(missing) <= count - near
        if missing and random.random() < 0.5:
            self.tiers.pin(names[len(device) : len(device) + near])
            self.tiers.fetch(missing)
            self.end(random, fails)
            return
        if self.cache.available - match.idle < whole - len(device):
            return
        for position, block in enumerate(device):
            assert self.device[block] == (namespace, tokens[: (position + 1) * self.size])
        promoted = self.tiers.pin(names[len(device) : len(device) + near])
        lease = self.cache.open(match, namespace)
        table = device + self.cache.allocate(whole - len(device))
        self.cache.register(lease, np.array(tokens, np.int32), np.array(table, np.int32), whole)
        held = {position: self.host.get(block) for position, block in enumerate(promoted, len(device))}
        kept = dict(self.device)
        self.end(random, fails)
        if fails:
            self.device = kept
            self.cache.unregister(lease, np.array(table, np.int32), len(device))
        else:
            for position, prefix in held.items():
                assert prefix == (namespace, tokens[: (position + 1) * self.size]), "wrong contents came back"
            for position, block in enumerate(table):
                self.device[block] = (namespace, tokens[: (position + 1) * self.size])
        self.cache.release(lease, np.array(table, np.int32))

    @rule(count=st.integers(1, 4))
    def swap(self, count: int) -> None:
        self.begin()
        if count <= self.tiers.available:
            self.swapped.append(self.tiers.allocate(count))
        self.end(Random(0), False)
        for blocks in self.swapped:
            self.host.update(dict.fromkeys(blocks, "a sequence's"))

    @precondition(lambda self: self.swapped)
    @rule()
    def return_swapped(self) -> None:
        self.tiers.release(self.swapped.pop(0))

    @invariant()
    def every_block_has_one_owner_and_every_key_its_contents(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check([])
        self.tiers.check(self.swapped)
        assert len(self.tiers.disk) <= self.disk_room
        for name, block in self.tiers.cached.items():
            namespace, tokens = self.host[block]
            assert self.keys(namespace, tokens)[-1] == name
        for name in self.tiers.disk:
            namespace, tokens = self.disk[name]
            assert self.keys(namespace, tokens)[-1] == name


class ChainLife(Life):
    cache_kind = ChainCache


few = settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
TestRadixLife = Life.TestCase
TestRadixLife.settings = few
TestChainLife = ChainLife.TestCase
TestChainLife.settings = few
