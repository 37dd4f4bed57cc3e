"""The radix cache: every cached block sits in a tree over token ids, found by comparing memory.

After SGLang's RadixAttention (Zheng et al. 2024). Different from it: hits are exact to the token, blocks enter when
they are scheduled, eviction takes single blocks, and holding a prefix costs its nodes, not its blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import cast

from paceline.kv.interface import Change, IntArray, Lease, LowerTier, Match
from paceline.kv.leaf_queue import LeafQueue
from paceline.kv.pool import BlockPool
from paceline.kv.radix_check import check
from paceline.kv.radix_lease import RadixLease
from paceline.kv.radix_match import find, goes_on
from paceline.kv.radix_node import BLOCK_ID_BYTES, TOKEN_BYTES, RadixNode, RadixRoot, common_tokens, content_keys

_STALE = "the match is stale: its blocks left the cache; match again whenever `generation` changes"


class RadixCache:
    """Implements `KVCache`. Times below: n nodes on a path, c children of a node.

    Prefix-closed: a lease holds whole paths, so nodes nobody holds always form whole subtrees, and every block of
    them can be evicted, tail first. A block in no tree belongs to exactly one sequence and needs no count.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable: bool = True) -> None:
        """`enable=False`: nothing is ever indexed, every match is empty.

        ValueError if `num_blocks` or `block_size` is below 1.
        """
        if block_size < 1:
            raise ValueError(f"block_size: {block_size} is not valid; it must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable = enable
        self.generation = 0
        self.changes: list[Change] | None = None
        self.lower: LowerTier | None = None
        self.cached = 0  # blocks in nodes without holders
        self.pool = BlockPool(num_blocks)
        self.queue = LeafQueue()
        self.roots: dict[bytes, RadixRoot] = {}
        self._block_bytes = block_size * TOKEN_BYTES
        self._epoch = 0  # the step being scheduled
        self._grown = False  # something was registered in this step
        self._era = 0  # resets so far; leases of an earlier era hold trees that are no longer searched
        self._clock = 0  # counts releases of nodes
        self._serial = 0  # counts nodes

    @property
    def available(self) -> int:
        """Blocks `allocate` could give now: free + cached."""
        return len(self.pool.free) + self.cached

    @property
    def free(self) -> int:
        """Blocks whose contents are unknown and that nobody refers to."""
        return len(self.pool.free)

    def begin_step(self) -> None:
        """Blocks registered so far count as written from here on."""
        self._epoch += 1
        if self._grown:
            self._grown = False
            self.generation += 1  # tail hits in them are possible now

    # -- finding and holding a prefix ------------------------------------------------------------------------------

    def match(self, tokens: bytes, length: int, namespace: bytes = b"") -> Match:
        """Longest cached prefix of the first `length` tokens (`tokens`: int32 as bytes). O(n + log c), plus memcmp."""
        root = self.roots.get(namespace)
        if root is None:
            return Match(0, array("i"), 0, -1, None)
        return find(root, tokens, length, self.block_size, self._epoch)

    def continues(self, match: Match, block: bytes) -> bool:
        """Is there a cached block with these tokens behind the whole blocks of the match? O(1)."""
        return goes_on(match, block)

    def open(self, match: Match, namespace: bytes = b"") -> Lease:
        """Hold the matched whole blocks. O(n). ValueError if they have left the cache since the match."""
        count = len(match.blocks)
        if not count:
            root = self.roots.get(namespace) or self._new_root(namespace)
            root.holders += 1
            return RadixLease(namespace, root, 0, self._era)
        node: RadixNode = match.node
        while node.start >= count and node.parent is not None:
            node = node.parent  # split since the match
        if node.end < count or node.blocks[count - 1 - node.start] != match.blocks[-1]:
            raise ValueError(_STALE)
        if self.roots.get(namespace) is not node.top():
            raise ValueError(_STALE)
        if node.end > count:
            node = self._split(node, count - node.start)
        lease = RadixLease(namespace, node, count, self._era)
        self._hold(node)
        while node.parent is not None:
            node = node.parent
            self._hold(node)
        return lease

    def _new_root(self, namespace: bytes) -> RadixRoot:
        root = RadixRoot(namespace)
        if self.enable:
            self.roots[namespace] = root
        return root

    def _split(self, node: RadixNode, count: int) -> RadixNode:
        upper = node.split(count, self._block_bytes)
        self._serial += 1
        upper.serial = self._serial
        return upper

    def _hold(self, node: RadixNode) -> None:
        if not node.holders and node.blocks:
            self.cached -= len(node.blocks)
            self.generation += 1  # `idle` of a match may differ
        node.holders += 1

    # -- taking blocks ---------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int]:
        """`count` blocks: free ones first, then the least recently used cached ones. O(log leaves) a leaf touched."""
        free = self.pool.free
        if count == 1 and free:
            return [free.pop()]
        short = count - len(free)
        if short <= 0:
            return self.pool.take(count)
        if short > self.cached:
            raise ValueError(f"cannot allocate {count} blocks: {self.available} of {self.num_blocks} are available")
        taken = self.pool.take(count - short)
        self._evict(short, taken)
        if self.changes is not None:
            self.changes += taken[count - short :]
        return taken

    def _evict(self, count: int, taken: list[int]) -> None:
        """Move the `count` cached blocks used longest ago to `taken`; from each leaf the tail first."""
        self.cached -= count
        self.generation += 1
        queue = self.queue
        while count:
            leaf = queue.oldest()
            blocks = leaf.blocks
            if self.lower is not None:
                self._demote(self.lower, leaf, max(len(blocks) - count, 0))
            if count < len(blocks):
                taken += blocks[: -count - 1 : -1]
                del blocks[-count:]
                del leaf.key[-count * self._block_bytes :]
                del leaf.names[len(blocks) :]
                return
            count -= len(blocks)
            taken += blocks[::-1]
            queue.remove_oldest()
            self._remove(leaf)

    def _demote(self, lower: LowerTier, leaf: RadixNode, first: int) -> None:
        """Offer the blocks from `first` on to the tier below, the tail first. Only what was written is worth it."""
        keys = content_keys(leaf, lower.root(cast(RadixRoot, leaf.top()).namespace), self._block_bytes)
        written = len(keys) if leaf.epoch != self._epoch else min(leaf.fresh, len(keys))
        for index in range(written - 1, first - 1, -1):
            lower.demote(leaf.blocks[index], keys[index])

    def _remove(self, node: RadixNode) -> None:
        """Take a childless node out of its tree; its blocks are somebody else's business from here on."""
        parent = node.parent
        assert parent is not None
        parent.drop(bytes(node.key[: self._block_bytes]))
        node.blocks = array("i")
        if parent.children or parent.holders:
            return
        if parent.parent is None:
            self._forget_root(parent)
        else:
            self.queue.push(parent)

    def _forget_root(self, root: RadixNode) -> None:
        namespace = cast(RadixRoot, root).namespace
        if self.roots.get(namespace) is root:
            del self.roots[namespace]

    # -- entering blocks and taking them out again -----------------------------------------------------------------

    def register(self, lease: Lease, tokens: IntArray, blocks: IntArray, whole: int) -> None:
        """Enter blocks `lease.registered` to `whole`; see `KVCache.register`. O(new blocks), one list and one copy.

        A lease older than the last `reset` registers nothing: its later blocks build on contents to be forgotten.
        """
        own = cast(RadixLease, lease)
        done = own.registered
        if whole <= done or not self.enable or own.era != self._era:
            return
        node: RadixNode = own.node
        key = tokens[done * self.block_size : whole * self.block_size].tobytes()
        new = blocks[done:whole].tobytes()
        if node.children:
            known, closed = self._follow(own, key, new)
            if closed:
                own.registered = done + known
                self.generation += 1
                return  # the rest is entered with the sequence's next block, when the way on is written
            if known:
                node = own.node
                key = key[known * self._block_bytes :]
                new = new[known * BLOCK_ID_BYTES :]
        if new:
            if self.changes is not None:
                above = node.blocks[-1] if node.blocks else own.namespace
                self.changes.append((above, key[: self._block_bytes]))
            if node.holders == 1 and not node.children and node.parent is not None:
                node.append(key, new, self._epoch)
            else:
                own.node = self._new_child(node, key, new)
        own.registered = whole
        self.generation += 1
        self._grown = True

    def _follow(self, lease: RadixLease, key: bytes, new: bytes) -> tuple[int, bool]:
        """Walk `lease` down blocks the tree has already. Returns how many, and whether the way on is not yet open.

        Where nobody holds the tree's blocks, the sequence's own in `new` take their place, so that a text never
        occupies the cache twice for one holder. Otherwise its own are twins beside those of the tree. Blocks of
        this very step are not followed: were their sequence preempted before they are written, they could not go.
        """
        size = self._block_bytes
        node: RadixNode = lease.node
        own = array("i", new)
        known = 0
        while known < len(own):
            child = node.children.get(key[:size])
            if child is None:
                break
            count = common_tokens(key, child.key) // self.block_size
            written = min(count, child.fresh) if child.epoch == self._epoch else count
            if not written:
                lease.node = node
                return known, True
            node = self._split(child, written) if written < len(child.blocks) else child
            idle = not node.holders
            self._hold(node)
            if idle:
                self._replace_blocks(node, own[known : known + written])
            else:
                lease.positions.extend(range(node.start, node.start + written))
                lease.twins += own[known : known + written]
                lease.shadow += node.blocks
            known += written
            key = key[written * size :]
        lease.node = node
        return known, False

    def _replace_blocks(self, node: RadixNode, blocks: array[int]) -> None:
        """Other blocks with the same contents, the last of them perhaps written only in this step."""
        self.pool.give(node.blocks)
        if self.changes is not None:
            self.changes += node.blocks
        node.blocks = blocks
        node.epoch, node.fresh = self._epoch, 0

    def _new_child(self, parent: RadixNode, key: bytes, blocks: bytes) -> RadixNode:
        child = RadixNode(parent, parent.start + len(parent.blocks), bytearray(key), array("i", blocks))
        self._serial += 1
        child.serial = self._serial
        child.epoch = self._epoch
        child.holders = 1
        parent.adopt(key[: self._block_bytes], child)
        return child

    def unregister(self, lease: Lease, blocks: IntArray, whole: int) -> None:
        """Keep only the first `whole` blocks; the later ones stay the sequence's, known to nobody else.

        Cached blocks below them go too: they build on contents that do not exist.
        RuntimeError, with nothing changed, if another sequence refers to one of them.
        """
        own = cast(RadixLease, lease)
        if whole >= own.registered:
            return
        twin = bisect_left(own.positions, whole)
        first = whole  # of the sequence's own blocks to go; up to there only twins, whose originals stay
        for position in own.positions[twin:]:
            if position != first:
                break
            first += 1
        if first < own.registered:
            self._cut(own, first, set(blocks[first : own.registered].tolist()))
        node: RadixNode = own.node
        while node.start >= whole and node.parent is not None:
            self._let_go(node, own.era)
            node = node.parent
        if node.end > whole:
            upper = self._split(node, whole - node.start)
            self._let_go(node, own.era)
            node = upper
        own.node = node
        own.registered = whole
        del own.positions[twin:], own.twins[twin:], own.shadow[twin:]
        self.generation += 1

    def _cut(self, lease: RadixLease, first: int, keep: set[int]) -> None:
        """Take everything from block `first` of the path on out of the tree. Blocks not in `keep` become free."""
        node: RadixNode = lease.node
        while node.start > first and node.parent is not None:
            node = node.parent
        if node.holders > 1:
            raise RuntimeError(
                f"block {node.blocks[first - node.start]} cannot be unregistered: another sequence refers to it"
            )
        if node.start < first:
            self._split(node, first - node.start)
        parent = node.parent
        assert parent is not None
        parent.drop(bytes(node.key[: self._block_bytes]))
        lease.node = parent
        doomed = [node]
        while doomed:
            node = doomed.pop()
            doomed.extend(node.children.values())
            if not node.holders:
                self.cached -= len(node.blocks)
            self.pool.give([block for block in node.blocks if block not in keep])
            if self.changes is not None:
                self.changes += node.blocks
            node.blocks = array("i")
            self.queue.bury(node)

    # -- leaving ---------------------------------------------------------------------------------------------------

    def release(self, lease: Lease, blocks: IntArray) -> None:
        """The sequence leaves. O(n) for what the tree has, O(1) a private block. ValueError if it left before."""
        own = cast(RadixLease, lease)
        node: RadixNode | None = own.node
        if node is None:
            raise ValueError("this lease was released before")
        private = blocks[own.registered :].tolist()
        if own.twins:
            private += own.twins
        if private:
            self.pool.give(private)
        while node.parent is not None:
            self._let_go(node, own.era)
            node = node.parent
        node.holders -= 1
        if not node.holders and not node.children:
            self._forget_root(node)
        own.node = None
        own.registered = 0
        own.shadow = []

    def _let_go(self, node: RadixNode, era: int) -> None:
        """One holder less. Callers go from the tail up, so a parent counts as used after its children."""
        node.holders -= 1
        if node.holders:
            return
        self.generation += 1
        if era != self._era:
            self.pool.give(node.blocks)
            self._remove_detached(node)
            return
        self.cached += len(node.blocks)
        self._clock += 1
        node.stamp = self._clock
        if not node.children:
            self.queue.push(node)

    def _remove_detached(self, node: RadixNode) -> None:
        assert node.parent is not None
        node.parent.drop(bytes(node.key[: self._block_bytes]))
        node.blocks = array("i")

    def reset(self) -> bool:
        """Forget all contents. Trees that sequences still hold live on unseen until those leave, then become free."""
        everything = True
        for root in self.roots.values():
            idle, all_idle = root.drop_idle()
            self.pool.give(idle)
            everything = everything and all_idle
        self.roots = {}
        if self.changes is not None:
            self.changes.append(None)
        self.queue.clear()
        self.cached = 0
        self._era += 1
        self.generation += 1
        return everything

    def check(self, held: Iterable[tuple[Lease, Sequence[int]]]) -> None:
        """Prove the accounting against every live (lease, block table). O(blocks). AssertionError says what differs."""
        check(self, held)
