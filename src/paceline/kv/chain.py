"""`ChainCache`: whole blocks found by their chain of contents, reused in the order vLLM reuses them.

The semantics are those of vLLM's V1 block pool, block ids and eviction order included, so that the same requests hit,
miss and evict the same. One thing differs on purpose: blocks that were registered for a step which never wrote them
are taken out again (`unregister`). Contents are compared, not hashed, so a false hit cannot happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.kv.content import extend_keys
from paceline.kv.interface import Change, IntArray, Lease, LowerTier, Match

NONE = -1


class _Link:
    """One distinct prefix of whole blocks: its parent's contents followed by `key`.

    It lives while some block holds its contents, or those of a prefix that continues it. So a prefix whose own block
    was taken out keeps what continues it: unreachable, until the same contents are registered again.
    """

    __slots__ = ("block", "children", "epoch", "key", "name", "parent", "twins")

    def __init__(self, parent: _Link | None, key: bytes, epoch: int) -> None:
        self.parent = parent
        self.key = key  # the last block's tokens; of a root, the namespace
        self.epoch = epoch  # how many times the cache had been reset; NONE once dropped
        self.children: dict[bytes, _Link] = {}
        self.block = NONE  # the block that a hit returns: of those with these contents, the first registered
        self.twins: dict[int, None] | None = None  # the others, in the order of registration
        self.name = b""  # the content key, once somebody asked for it


class ChainCache:
    """A pool of `num_blocks` blocks of `block_size` tokens, with an index of the full ones. Implements `KVCache`.

    - A hit is a run of full blocks from the start of the sequence; there are no tail hits.
    - Blocks are never merged. Of several with the same contents a hit returns the one registered first.
    - Blocks nobody refers to wait in one list. `allocate` takes from its front, whether indexed or not. `release` puts
      indexed blocks at the back and the others at the front, the deepest of the sequence first in either case, so a
      sequence's end is evicted before its beginning.
    - `enable=False` keeps no index: every match is empty and all released blocks go to the front.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"ChainCache needs num_blocks and block_size of at least 1, got {num_blocks} and {block_size}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable = enable
        self.generation = 0
        self.changes: list[Change] | None = None
        self.lower: LowerTier | None = None
        self._epoch = 0
        self._roots: dict[bytes, _Link] = {}
        self._link: list[_Link | None] = [None] * num_blocks  # what the index says a block holds
        self._references = [0] * num_blocks
        self._idle = 0  # indexed blocks nobody refers to
        # The reuse list is a ring through an extra element, `num_blocks`: its next is the front, its previous the back.
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self._available = num_blocks

    @property
    def available(self) -> int:
        """Blocks `allocate` could give now: all that nobody refers to."""
        return self._available

    @property
    def free(self) -> int:
        """Blocks that nobody refers to and the index does not know."""
        return self._available - self._idle

    def begin_step(self) -> None:
        """Nothing to note: without tail hits it does not matter which step registered a block."""

    def match(self, tokens: bytes, length: int, namespace: bytes = b"") -> Match:
        """Longest run of indexed full blocks within the first `length` tokens (4 bytes each) of `tokens`."""
        blocks: list[int] = []
        link = self._roots.get(namespace)
        if link is not None:
            width = 4 * self.block_size
            for start in range(0, length // self.block_size * width, width):
                child = link.children.get(tokens[start : start + width])
                if child is None or child.block < 0:
                    break
                blocks.append(child.block)
                link = child
        idle = list(map(self._references.__getitem__, blocks)).count(0)
        return Match(len(blocks) * self.block_size, blocks, idle, NONE, link)

    def continues(self, match: Match, block: bytes) -> bool:
        """Is there an indexed block with these tokens behind those of the match?"""
        child = None if match.node is None else match.node.children.get(block)
        return child is not None and child.block >= 0

    def open(self, match: Match, namespace: bytes = b"") -> Lease:
        """Refer to each matched block once; those that waited for reuse leave the list."""
        references = self._references
        for block in match.blocks:
            if not references[block]:
                self._unlist(block)
            references[block] += 1
        if match.idle:
            self._available -= match.idle
            self._idle -= match.idle
            self.generation += 1
        link = match.node or _Link(None, namespace, self._epoch)
        return Lease(namespace, link, len(match.blocks))

    def allocate(self, count: int) -> list[int]:
        """The first `count` blocks of the reuse list, each referred to once; whatever they held is forgotten."""
        if count > self._available:
            raise ValueError(f"{count} blocks asked for, {self._available} available: preempt or release first")
        ring, references, links = self._next, self._references, self._link
        end = self.num_blocks
        block = ring[end]
        taken: list[int] = []
        for _ in range(count):
            taken.append(block)
            references[block] = 1
            if links[block] is not None:
                self._idle -= 1
                if self.lower is not None:
                    self._demote(self.lower, block)
                self._forget(block)
            block = ring[block]
        ring[end] = block
        self._previous[block] = end
        self._available -= count
        return taken

    def register(self, lease: Lease, tokens: IntArray, blocks: IntArray, whole: int) -> None:
        """Index blocks `lease.registered` to `whole` (exclusive) of the sequence under their contents."""
        first = lease.registered
        if whole <= first or not self.enable:
            return
        lease.registered = whole
        link: _Link = lease.node
        if link.epoch != self._epoch:
            return  # what this sequence computes rests on K/V that `reset` disowned
        if link.parent is None:
            link = self._roots.setdefault(lease.namespace, link)  # roots are kept only while something is below
        width = 4 * self.block_size
        data = tokens[first * self.block_size : whole * self.block_size].tobytes()
        start = 0
        for block in blocks[first:whole].tolist():
            key = data[start : start + width]
            start += width
            child = link.children.get(key)
            if child is None:
                child = link.children[key] = _Link(link, key, self._epoch)
            if child.block < 0:
                child.block = block
                self.generation += 1
                if self.changes is not None:
                    self.changes.append((lease.namespace if link.parent is None else link.block, key))
            elif child.twins is None:
                child.twins = {block: None}
            else:
                child.twins[block] = None
            self._link[block] = link = child
        lease.node = link

    def unregister(self, lease: Lease, blocks: IntArray, whole: int) -> None:
        """Take blocks `whole` to `lease.registered` (exclusive) of the sequence out of the index."""
        if lease.node.epoch == self._epoch:
            for block in reversed(blocks[whole : lease.registered].tolist()):
                lease.node = lease.node.parent
                if self._link[block] is not None:
                    self._forget(block)
        lease.registered = min(lease.registered, whole)

    def release(self, lease: Lease, blocks: IntArray) -> None:
        """Drop one reference of each block of the sequence; those nobody refers to any more join the reuse list."""
        references, links = self._references, self._link
        front: list[int] = []
        back: list[int] = []
        for block in reversed(blocks.tolist()):
            references[block] -= 1
            if not references[block]:
                (front if links[block] is None else back).append(block)
        end = self.num_blocks
        self._insert(front, end)
        if back:
            self._insert(back, self._previous[end])
            self._idle += len(back)
            self.generation += 1

    def reset(self) -> bool:
        """Empty the index; the reuse list keeps its order. True if nobody refers to a block, so all is forgotten.

        What running sequences compute from now on is not indexed either: it rests on what was forgotten.
        """
        self._epoch += 1
        self._roots = {}
        self._link = [None] * self.num_blocks
        self._idle = 0
        self.generation += 1
        if self.changes is not None:
            self.changes.append(None)
        return self._available == self.num_blocks

    def check(self, held: Iterable[tuple[Lease, Sequence[int]]]) -> None:
        """Prove references, reuse list and index against every live (lease, block table)."""
        expected = [0] * self.num_blocks
        for lease, table in held:
            for block in table:
                expected[block] += 1
            assert not lease.shadow, f"a lease has shadow blocks {lease.shadow}; this cache gives none"
            assert lease.registered <= len(table), f"{lease.registered} blocks registered of {len(table)} held"
        for block, count in enumerate(expected):
            actual = self._references[block]
            assert actual == count, f"block {block} has {actual} references, {count} sequences hold it"
        listed = self._reuse_order()
        assert len(listed) == self._available, f"{len(listed)} blocks listed, {self._available} counted"
        assert sorted(listed) == [b for b, count in enumerate(expected) if not count], (
            "reuse list is not the unheld blocks"
        )
        idle = sum(self._link[block] is not None for block in listed)
        assert idle == self._idle, f"{idle} unheld blocks are indexed, {self._idle} counted"
        self._check_index()

    def _check_index(self) -> None:
        indexed: dict[int, _Link] = {}
        pending = list(self._roots.values())
        while pending:
            link = pending.pop()
            own = [] if link.block < 0 else [link.block, *(link.twins or ())]
            assert own or not link.twins, f"twins {link.twins} without a first block"
            assert own or link.children, "a link without blocks and without children is kept"
            for block in own:
                assert block not in indexed, f"block {block} is indexed twice"
                indexed[block] = link
            for key, child in link.children.items():
                assert child.parent is link and child.key == key, "a link is filed under a wrong parent or key"
                pending.append(child)
        actual = {block: link for block, link in enumerate(self._link) if link is not None}
        assert indexed == actual, f"the index holds {sorted(indexed)}, the blocks say {sorted(actual)}"

    def _reuse_order(self) -> list[int]:
        """The blocks nobody refers to, the next to be reused first."""
        order: list[int] = []
        block = self._next[self.num_blocks]
        while block != self.num_blocks:
            order.append(block)
            block = self._next[block]
        return order

    def _insert(self, blocks: list[int], after: int) -> None:
        """Put `blocks` into the reuse list, in their order, behind element `after`."""
        ring, previous = self._next, self._previous
        follower = ring[after]
        for block in blocks:
            ring[after] = block
            previous[block] = after
            after = block
        ring[after] = follower
        previous[follower] = after
        self._available += len(blocks)

    def _unlist(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before

    def _demote(self, lower: LowerTier, block: int) -> None:
        """Offer an evicted block to the tier below, if it is the only one with its contents."""
        link = self._link[block]
        assert link is not None
        if link.block != block or link.twins:
            return
        path = [link]
        while not path[-1].name and path[-1].parent is not None:
            path.append(path[-1].parent)
        top = path.pop()
        name = top.name or lower.root(top.key)
        width = 4 * self.block_size
        for one in reversed(path):
            keys: list[bytes] = []
            extend_keys(keys, name, one.key, width, 1)
            one.name = name = keys[0]
        lower.demote(block, name)

    def _forget(self, block: int) -> None:
        """Take an indexed block out of the index, and the links that nothing needs any more with it."""
        link = self._link[block]
        assert link is not None
        self._link[block] = None
        if link.block != block:
            assert link.twins is not None
            del link.twins[block]
            return
        self.generation += 1
        if self.changes is not None:
            self.changes.append(block)
        if link.twins:
            link.block = next(iter(link.twins))
            del link.twins[link.block]
            return
        link.block = NONE
        while link.block < 0 and not link.children:
            parent = link.parent
            if parent is None:
                self._roots.pop(link.key, None)
                return
            del parent.children[link.key]
            link.epoch = NONE  # nothing may be registered below it any more
            link = parent
