"""A node of the radix tree: one edge of whole blocks, and the children below it.

INVARIANT: all blocks of a node have the same holders. Whoever holds a block holds every block before it, so one
count per node stands for a reference count on each of its blocks; a hold that ends inside an edge splits the edge.
Taking or dropping a prefix of any length thus costs its number of nodes, not of blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort

import numpy as np

from paceline.kv.content import extend_keys

TOKEN_BYTES = 4  # int32, as are the numbers of blocks:
BLOCK_ID_BYTES = array("i").itemsize


class RadixNode:
    """`key` holds the tokens of `blocks`: int32 as bytes, `len(blocks)` whole blocks. A root has neither."""

    __slots__ = (
        "blocks",
        "children",
        "epoch",
        "fresh",
        "holders",
        "key",
        "names",
        "order",
        "parent",
        "queued",
        "serial",
        "stamp",
        "start",
    )

    def __init__(self, parent: RadixNode | None, start: int, key: bytearray, blocks: array[int]) -> None:
        self.parent = parent
        self.start = start  # blocks between the root and this node
        self.key = key  # a bytearray, so that growing and trimming the end costs O(block)
        self.blocks = blocks  # int32: copied as memory, with no reference count per element
        self.children: dict[bytes, RadixNode] = {}  # by the bytes of their first block
        self.order: list[bytes] = []  # the keys of `children`, sorted
        self.holders = 0  # leases whose path includes this node
        self.stamp = 0  # time of the last release; smaller is older
        self.serial = 0  # distinct for each node: breaks ties of `stamp`
        self.queued = False  # has an entry in the LeafQueue
        self.epoch = -1  # step that last added blocks here ...
        self.fresh = 0  # ... and the first of them; before it, all are written
        self.names: list[bytes] = []  # content keys of the first blocks, as far as somebody asked for them

    @property
    def end(self) -> int:
        """Blocks between the root and the end of this node."""
        return self.start + len(self.blocks)

    def top(self) -> RadixNode:
        """The root of its tree."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def adopt(self, first: bytes, child: RadixNode) -> None:
        """Enter a child under the bytes of its first block, which no other child has."""
        self.children[first] = child
        insort(self.order, first)

    def drop(self, first: bytes) -> None:
        """Remove the child whose first block is `first`."""
        del self.children[first]
        del self.order[bisect_left(self.order, first)]

    def append(self, key: bytes, blocks: bytes, epoch: int) -> None:
        """Grow the edge at its end by blocks (int32) registered in step `epoch`."""
        length = len(self.blocks)
        if self.epoch != epoch:
            self.epoch = epoch
            self.fresh = length
        elif self.fresh > length:
            self.fresh = length
        self.key += key
        self.blocks.frombytes(blocks)

    def split(self, count: int, block_bytes: int) -> RadixNode:
        """Cut the first `count` blocks off into a new node above; 0 < count < len(blocks). Returns that node.

        This object stays the lower part, so a lease that ends here still does.
        """
        parent = self.parent
        assert parent is not None
        cut = count * block_bytes
        upper = RadixNode(parent, self.start, self.key[:cut], self.blocks[:count])
        del self.key[:cut]
        del self.blocks[:count]
        parent.children[bytes(upper.key[:block_bytes])] = upper  # same first block: `order` stands
        upper.adopt(bytes(self.key[:block_bytes]), self)
        upper.holders = self.holders
        upper.epoch = self.epoch
        upper.fresh = min(self.fresh, count)
        upper.names = self.names[:count]
        del self.names[:count]
        self.parent = upper
        self.start += count
        self.fresh = max(self.fresh - count, 0)
        return upper

    def longest_tail(self, tokens: bytes, epoch: int) -> tuple[int, int]:
        """(tokens, block): the written first block of a child that agrees longest with `tokens`; (0, -1) if none.

        `tokens` is less than a block, or a block no child starts with. In a sorted list the longest common prefix is
        with a neighbour, so this costs O(log children), plus a step past each child registered since `epoch` began.
        """
        order, children = self.order, self.children
        first = tokens[:TOKEN_BYTES]
        right = bisect_left(order, tokens)
        left = right - 1
        best, block = 0, -1
        while left >= 0 and (key := order[left]).startswith(first):
            child = children[key]
            if child.fresh or child.epoch != epoch:
                best, block = common_tokens(tokens, key), child.blocks[0]
                break
            left -= 1
        while right < len(order) and (key := order[right]).startswith(first):
            child = children[key]
            if child.fresh or child.epoch != epoch:
                common = common_tokens(tokens, key)
                if common > best:
                    best, block = common, child.blocks[0]
                break
            right += 1
        return best, block


def content_keys(node: RadixNode, root: bytes, block_bytes: int) -> list[bytes]:
    """The content keys of a node's blocks (see `content`); those computed before are kept. `root`: its `root_key`."""
    path = [node]
    while (above := path[-1].parent) is not None and len(above.names) < len(above.blocks):
        path.append(above)
    for one in reversed(path):
        parent = one.parent
        before = root if parent is None or parent.parent is None else parent.names[-1]
        extend_keys(one.names, before, one.key, block_bytes, len(one.blocks))
    return node.names


class RadixRoot(RadixNode):
    """Top of one namespace's tree. `holders` counts its open leases."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: bytes) -> None:
        super().__init__(None, 0, bytearray(), array("i"))
        self.namespace = namespace

    def drop_idle(self) -> tuple[array[int], bool]:
        """Take every node nobody holds out of the tree: their blocks, and whether that was all there were."""
        dropped, everything = array("i"), True
        stack: list[RadixNode] = [self]
        while stack:
            node = stack.pop()
            for first, child in list(node.children.items()):
                if child.holders:
                    everything = False
                else:
                    node.drop(first)
                    dropped += child.blocks
                stack.append(child)
            if not node.holders:
                node.blocks = array("i")
        return dropped, everything


_SMALL = 512  # bytes up to which Python's integers beat numpy's fixed cost


def common_tokens(left: bytes | bytearray, right: bytes | bytearray) -> int:
    """Length of the longest common prefix, in tokens."""
    size = min(len(left), len(right))
    if size <= _SMALL:
        differ = int.from_bytes(left[:size], "little") ^ int.from_bytes(right[:size], "little")
        if not differ:
            return size // TOKEN_BYTES
        return ((differ & -differ).bit_length() - 1) // (8 * TOKEN_BYTES)
    count = size // TOKEN_BYTES
    unequal = np.frombuffer(left, np.int32, count) != np.frombuffer(right, np.int32, count)
    where = int(unequal.argmax())
    return where if unequal[where] else count
