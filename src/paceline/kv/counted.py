"""A cache that only counts: for simulations in which no two sequences have a block in common.

Then a sequence can find nothing but its own blocks, after a preemption, and which numbers blocks have decides nothing.
What is given, found and evicted is what a `RadixCache` would give, find and evict; what a step costs does not grow with
the number of blocks.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence

from paceline.kv.interface import Change, IntArray, Lease, LowerTier, Match

_MARK = 2  # tokens that tell every sequence from all others
_TOKEN_BYTES = 4
_NOTHING = Match(0, array("i"), 0, -1, None)


class _Kept:
    """The blocks that a sequence left behind."""

    __slots__ = ("count", "name", "serial")

    def __init__(self, name: bytes, count: int, serial: int) -> None:
        self.name = name
        self.count = count
        self.serial = serial  # what its last block is called


class CountedLease(Lease):
    """`node` is the era it was opened in, None once it was released."""

    __slots__ = ("name",)

    def __init__(self, namespace: bytes, era: int, registered: int) -> None:
        super().__init__(namespace, era, registered)
        self.name = b""


class CountedCache:
    """Implements `KVCache` but for lower tiers. The caller vouches that sequences differ in their first two tokens.

    Every block is called 0; the last of a match has a number of its own. All is O(1) but for evicting, which is O(1) a
    sequence.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable: bool = True) -> None:
        """`enable=False`: nothing is ever found again."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable = enable
        self.generation = 0
        self.changes: list[Change] | None = None
        self.lower: LowerTier | None = None
        self.free = num_blocks
        self.available = num_blocks  # with those left behind
        self._zeros = array("i", bytes(4 * num_blocks))
        self._queue: deque[_Kept] = deque()  # the one left longest ago first; empty ones count for nothing
        self._kept: dict[bytes, _Kept] = {}
        self._serial = 0
        self._era = 0  # resets so far

    def begin_step(self) -> None:
        """Nobody shares, so nobody could read too early."""

    def match(self, tokens: bytes, length: int, namespace: bytes = b"") -> Match:
        """What the sequence itself has left here. O(1)."""
        if not self._kept:
            return _NOTHING
        kept = self._kept.get(namespace + tokens[: _MARK * _TOKEN_BYTES])
        if kept is None:
            return _NOTHING
        whole = min(kept.count, length // self.block_size)
        if not whole:
            return _NOTHING
        blocks = self._zeros[:whole]
        blocks[-1] = kept.serial
        return Match(whole * self.block_size, blocks, whole, -1, kept)

    def continues(self, match: Match, block: bytes) -> bool:
        """A match has all there is."""
        return False

    def open(self, match: Match, namespace: bytes = b"") -> CountedLease:
        """Take the matched blocks. ValueError if they have left the cache since the match."""
        whole = len(match.blocks)
        lease = CountedLease(namespace, self._era, whole)
        if not whole:
            return lease
        kept: _Kept = match.node
        if kept.count < whole or self._kept.get(kept.name) is not kept:
            raise ValueError("the match is stale: its blocks left the cache; match again")
        del self._kept[kept.name]
        lease.name = kept.name
        kept.count -= whole
        self.available -= whole
        self.generation += 1
        return lease

    def allocate(self, count: int) -> Sequence[int]:
        """`count` blocks: free ones first, then those left behind longest ago."""
        if not 0 <= count <= self.available:
            raise ValueError(f"cannot allocate {count} blocks: {self.available} of {self.num_blocks} are available")
        self.available -= count
        self.free -= count
        if self.free < 0:
            self._evict(-self.free)
            self.free = 0
        return self._zeros[:count]

    def _evict(self, count: int) -> None:
        self.generation += 1
        queue = self._queue
        while count:
            kept = queue[0]
            if kept.count and self.changes is not None:
                self.changes.append(kept.serial)
            if kept.count > count:
                kept.count -= count
                return
            count -= kept.count
            queue.popleft()
            if self._kept.get(kept.name) is kept:
                del self._kept[kept.name]

    def register(self, lease: Lease, tokens: IntArray, blocks: IntArray, whole: int) -> None:
        """The sequence's first `whole` blocks stay when it leaves. O(1)."""
        if whole <= lease.registered or not self.enable:
            return
        assert isinstance(lease, CountedLease)
        if not lease.name:
            lease.name = lease.namespace + tokens[:_MARK].tobytes()
        lease.registered = whole

    def unregister(self, lease: Lease, blocks: IntArray, whole: int) -> None:
        """Only its first `whole` blocks do."""
        lease.registered = min(lease.registered, whole)

    def release(self, lease: Lease, blocks: IntArray) -> None:
        """The sequence leaves. ValueError if it left before."""
        assert isinstance(lease, CountedLease)
        if lease.node is None:
            raise ValueError("this lease was released before")
        count = lease.registered if lease.node == self._era else 0
        size = len(blocks)
        self.free += size - count
        self.available += size
        lease.node, lease.registered = None, 0
        if count:
            self.generation += 1
            self._serial += 1
            kept = _Kept(lease.name, count, self._serial)
            self._queue.append(kept)
            self._kept[lease.name] = kept

    def reset(self) -> bool:
        """Forget what was left behind; those still here leave nothing."""
        self._queue.clear()
        self._kept.clear()
        everything = self.free == self.available == self.num_blocks
        self.free = self.available
        self._era += 1
        self.generation += 1
        if self.changes is not None:
            self.changes.append(None)
        return everything

    def check(self, held: Iterable[tuple[Lease, Sequence[int]]]) -> None:
        """Prove the accounting. AssertionError says what differs."""
        owned = 0
        for lease, blocks in held:
            assert lease.registered <= len(blocks), f"{lease.registered} of {len(blocks)} blocks are registered"
            owned += len(blocks)
        cached = sum(kept.count for kept in self._queue)
        assert self.available == self.free + cached, f"{self.available} available: {self.free} free, {cached} cached"
        assert self.available + owned == self.num_blocks, f"{self.available} available, {owned} held"
