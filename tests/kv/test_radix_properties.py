"""Random lives of a radix cache, against a model that only knows a dictionary of token prefixes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.kv.radix import RadixCache

LONGEST = 8  # blocks
Prefix = tuple[bytes, tuple[int, ...]]  # namespace, tokens


class Sequence:
    def __init__(self, namespace: bytes, tokens: tuple[int, ...], lease: Any, table: list[int]) -> None:
        self.namespace = namespace
        self.tokens = tokens
        self.lease = lease
        self.table = table
        self.known = len(table)  # blocks registered, as the model sees it
        self.old = self.known  # those registered before this step
        self.twins: dict[int, int] = {}  # position -> the cache's block with the same tokens
        self.forgotten = False  # the cache was reset under it


class Model:
    """What `RadixCache` does, by brute force over whole prefixes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.index: dict[Prefix, int] = {}
        self.step_of: dict[int, int] = {}  # indexed block -> step it was registered in
        self.idle_since: dict[int, int] = {}  # indexed, unreferenced block -> when its last reference went
        self.references: dict[int, int] = {}
        self.step = 0
        self.clock = 0

    def match(self, namespace: bytes, tokens: tuple[int, ...]) -> tuple[list[int], int, set[int]]:
        """Whole blocks, tokens of the tail, and the blocks that may serve as the tail."""
        blocks: list[int] = []
        for end in range(self.size, len(tokens) + 1, self.size):
            block = self.index.get((namespace, tokens[:end]))
            if block is None:
                break
            blocks.append(block)
        whole = len(blocks) * self.size
        best, tails = 0, set()
        for (space, prefix), block in self.index.items():
            if space != namespace or len(prefix) != whole + self.size or prefix[:whole] != tokens[:whole]:
                continue
            if self.step_of[block] == self.step:
                continue
            common = 0
            for a, b in zip(prefix[whole:], tokens[whole:], strict=False):
                if a != b:
                    break
                common += 1
            if common > best:
                best, tails = common, {block}
            elif common == best:
                tails.add(block)
        return blocks, best, tails if best else {-1}

    def refer(self, block: int) -> None:
        self.references[block] = self.references.get(block, 0) + 1
        self.idle_since.pop(block, None)

    def unrefer(self, block: int, when: int) -> None:
        self.references[block] -= 1
        if not self.references[block]:
            del self.references[block]
            if block in self.step_of:
                self.idle_since[block] = when

    def forget(self, prefix: Prefix) -> None:
        block = self.index.pop(prefix)
        del self.step_of[block]
        self.idle_since.pop(block, None)

    def evict(self) -> int:
        """Forget the tail block that has been idle longest."""
        inner = {(space, tokens[: -self.size]) for space, tokens in self.index}
        block, prefix = min(
            (
                (block, prefix)
                for prefix, block in self.index.items()
                if block in self.idle_since and prefix not in inner
            ),
            key=lambda pair: self.idle_since[pair[0]],
        )
        self.forget(prefix)
        return block


def draw_tokens(rng: Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randint(0, 1) for _ in range(count))


SEEDS = st.integers(0, 2**32 - 1)  # one number a rule; all else follows from it


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[Sequence] = []
        self.asked: list[tuple[int, tuple[Any, ...], Any]] = []

    @initialize(size=st.integers(1, 3), blocks=st.integers(1, 24))
    def create(self, size: int, blocks: int) -> None:
        self.cache = RadixCache(blocks, size)
        self.model = Model(size)
        self.size = size

    def ask(self, namespace: bytes, tokens: tuple[int, ...]) -> Any:
        """Match, compared with the model."""
        key = np.array(tokens, np.int32).tobytes()
        match = self.cache.match(key, len(tokens), namespace)
        blocks, tail, tails = self.model.match(namespace, tokens)
        assert list(match.blocks) == blocks
        assert match.length == len(blocks) * self.size + tail
        assert match.tail_block in tails
        assert match.idle == sum(block in self.model.idle_since for block in blocks)
        self.asked.append((self.cache.generation, (key, len(tokens), namespace), match))
        return match

    def allocate(self, count: int) -> list[int] | None:
        if count > self.cache.available:
            with pytest.raises(ValueError, match="available"):
                self.cache.allocate(count)
            return None
        evicted = {self.model.evict() for _ in range(count - self.cache.free)}
        cached = set(self.cache.allocate(0)) | set(self.model.idle_since)
        blocks = self.cache.allocate(count)
        assert len(set(blocks)) == count
        assert evicted <= set(blocks)
        assert not cached & set(blocks)
        for block in blocks:
            assert block not in self.model.references
            self.model.refer(block)
        return blocks

    def begin(self, namespace: bytes, tokens: tuple[int, ...], own: int, match: Any = None) -> None:
        match = match or self.ask(namespace, tokens)
        if own > self.cache.available - match.idle:
            return
        lease = self.cache.open(match, namespace)
        for block in match.blocks:
            self.model.refer(block)
        sequence = Sequence(namespace, tokens, lease, list(match.blocks))
        taken = self.allocate(own)
        assert taken is not None
        sequence.table += taken
        self.sequences.append(sequence)

    def near(self, rng: Random) -> Prefix:
        """Tokens that agree for a while with something cached or running, if there is anything."""
        known = sorted(self.model.index) + [(one.namespace, one.tokens) for one in self.sequences]
        space, base = rng.choice(known) if known else (b"", ())
        keep = rng.randint(0, len(base))
        more = rng.randint(0, LONGEST * self.size - keep) if keep < LONGEST * self.size else 0
        return space, base[:keep] + draw_tokens(rng, more)

    @rule(seed=SEEDS, own=st.integers(0, 3))
    def start(self, seed: int, own: int) -> None:
        self.begin(*self.near(Random(seed)), own)

    @rule(seed=SEEDS)
    def start_elsewhere(self, seed: int) -> None:
        """In another namespace, with tokens that are known in this one."""
        space, tokens = self.near(Random(seed))
        self.begin(b"" if space else b"other", tokens, 0)

    @rule(seed=SEEDS)
    def start_from_an_earlier_match(self, seed: int) -> None:
        """Made before others opened theirs, at the same generation."""
        valid = [entry for entry in self.asked if entry[0] == self.cache.generation]
        if valid:
            _, (key, _, space), match = Random(seed).choice(valid)
            self.begin(space, tuple(np.frombuffer(key, np.int32).tolist()), 0, match)

    @precondition(lambda self: self.sequences)
    @rule(seed=SEEDS, count=st.integers(1, 3))
    def compute(self, seed: int, count: int) -> None:
        """Some sequence fills its next blocks."""
        rng = Random(seed)
        sequence = rng.choice(self.sequences)
        whole = sequence.known + count
        if len(sequence.tokens) < whole * self.size:
            more = whole * self.size - len(sequence.tokens)
            sequence.tokens += draw_tokens(rng, more)
        missing = whole - len(sequence.table)
        if missing > 0:
            taken = self.allocate(missing)
            if taken is None:
                return
            sequence.table += taken
        self.cache.register(
            sequence.lease, np.array(sequence.tokens, np.int32), np.array(sequence.table, np.int32), whole
        )
        if sequence.forgotten:
            return
        for position in range(sequence.known, whole):
            prefix = (sequence.namespace, sequence.tokens[: (position + 1) * self.size])
            block = sequence.table[position]
            known = self.model.index.get(prefix)
            if known is not None and self.model.step_of[known] == self.model.step:
                whole = position  # not written yet: the rest is entered another time
                break
            if known is None or known in self.model.idle_since:
                if known is not None:  # nobody needs it beside the sequence's own
                    self.model.forget(prefix)
                self.model.index[prefix] = block
                self.model.step_of[block] = self.model.step
            else:
                sequence.twins[position] = known
                self.model.refer(known)
        sequence.known = whole
        assert sequence.lease.registered == whole
        assert sequence.lease.shadow == [sequence.twins[position] for position in sorted(sequence.twins)]

    @rule()
    def step(self) -> None:
        self.cache.begin_step()
        self.model.step += 1
        for sequence in self.sequences:
            sequence.old = sequence.known

    @precondition(lambda self: self.sequences)
    @rule(seed=SEEDS, end=st.booleans())
    def undo(self, seed: int, end: bool) -> None:
        """A sequence takes out what it registered in this step (or some of it), and perhaps leaves."""
        rng = Random(seed)
        sequence = rng.choice(self.sequences)
        whole = rng.randint(sequence.old, sequence.known)
        table = np.array(sequence.table, np.int32)
        own = [p for p in range(whole, sequence.known) if p not in sequence.twins]
        if any(self.model.references[sequence.table[position]] > 1 for position in own):
            before = self.cache.generation
            with pytest.raises(RuntimeError, match="another sequence"):
                self.cache.unregister(sequence.lease, table, whole)
            assert self.cache.generation == before
            return
        self.cache.unregister(sequence.lease, table, whole)
        self.model.clock += 1
        if own and not sequence.forgotten:
            top = (sequence.namespace, sequence.tokens[: (own[0] + 1) * self.size])
            for prefix in list(self.model.index):
                if prefix[0] == top[0] and prefix[1][: len(top[1])] == top[1]:
                    self.model.forget(prefix)
        for position in range(whole, sequence.known):
            if position in sequence.twins:
                self.model.unrefer(sequence.twins.pop(position), self.model.clock)
        sequence.known = whole
        if end:
            self.leave(sequence)

    @precondition(lambda self: self.sequences)
    @rule(seed=SEEDS)
    def finish(self, seed: int) -> None:
        self.leave(Random(seed).choice(self.sequences))

    def leave(self, sequence: Sequence) -> None:
        self.cache.release(sequence.lease, np.array(sequence.table, np.int32))
        self.model.clock += 1
        for block in [*sequence.table, *sequence.twins.values()]:
            self.model.unrefer(block, self.model.clock)
        self.sequences.remove(sequence)

    @rule(seed=SEEDS)
    def look(self, seed: int) -> None:
        self.ask(*self.near(Random(seed)))

    @rule()
    def look_everywhere(self) -> None:
        """At every known prefix, whole, cut short and with its last token changed."""
        for space, tokens in list(self.model.index):
            self.ask(space, tokens)
            self.ask(space, tokens[:-1])
            self.ask(space, (*tokens[:-1], 2))

    @rule(count=st.integers(0, 30))
    def pressure(self, count: int) -> None:
        """Blocks are wanted for a moment by somebody who registers nothing."""
        lease = self.cache.open(self.cache.match(b"", 0))
        taken = self.allocate(count) or []
        self.cache.release(lease, np.array(taken, np.int32))
        for block in taken:
            self.model.unrefer(block, 0)

    @precondition(lambda self: self.sequences)
    @rule(sure=st.integers(0, 3))
    def reset(self, sure: int) -> None:
        if sure:
            return
        everything = not any(block in self.model.references for block in self.model.index.values())
        assert self.cache.reset() == everything
        for prefix in list(self.model.index):
            self.model.forget(prefix)
        for sequence in self.sequences:
            sequence.forgotten = True

    @invariant()
    def accounts_add_up(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check((sequence.lease, sequence.table) for sequence in self.sequences)
        held = len(self.model.references)
        assert self.cache.available == self.cache.num_blocks - held
        assert self.cache.free == self.cache.num_blocks - held - len(self.model.idle_since)

    @invariant()
    def an_equal_generation_means_equal_matches(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.asked = [entry for entry in self.asked if entry[0] == self.cache.generation]
        for _, arguments, match in self.asked:
            again = self.cache.match(*arguments)
            assert again[:3] == match[:3]
            assert (again.tail_block < 0) == (match.tail_block < 0)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for sequence in list(self.sequences):
            self.leave(sequence)
        assert self.cache.available == self.cache.num_blocks
        self.cache.check([])
        self.cache.reset()
        assert self.cache.free == self.cache.num_blocks
        self.cache.check([])


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_long_random_lives(first: int) -> None:
    """The same rules, many more of them in a row than hypothesis tries. A failure names its seed."""
    for seed in range(first, first + 100):
        rng = Random(seed)
        life = Life()
        life.create(rng.randint(1, 3), rng.randint(4, 40))
        try:
            for _ in range(100):
                random_rule(life, rng)
                life.accounts_add_up()
                life.an_equal_generation_means_equal_matches()
            life.teardown()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def random_rule(life: Life, rng: Random) -> None:
    draw = rng.getrandbits(32)
    choice = rng.randint(0, 99)
    if choice < 20:
        life.start(draw, rng.randint(0, 3))
    elif choice < 24:
        life.start_elsewhere(draw)
    elif choice < 30:
        life.start_from_an_earlier_match(draw)
    elif choice < 40:
        life.look_everywhere()
    elif choice < 44:
        life.look(draw)
    elif choice < 52:
        life.step()
    elif choice < 55:
        life.pressure(rng.randint(0, 30))
    elif not life.sequences:
        return
    elif choice < 80:
        life.compute(draw, rng.randint(1, 3))
    elif choice < 88:
        life.undo(draw, rng.random() < 0.5)
    elif choice < 99:
        life.finish(draw)
    else:
        life.reset(0)
