"""What the scheduler asks of a KV cache. `RadixCache` and `ChainCache` implement it; `CountedCache` stands in for the
first in simulations.

Tokens are int32, passed as `bytes` (4 bytes a token) or as int32 arrays. A block is `block_size` tokens of K/V.
The block tables themselves belong to the scheduler; a cache counts references to blocks and knows their contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


class Match(NamedTuple):
    """The longest cached prefix of some tokens. Valid until the cache changes (see `KVCache.generation`)."""

    length: int  # tokens of the hit: whole blocks, plus the part of `tail_block`
    blocks: Sequence[int]  # the whole blocks, in order; a list, or an array to be copied as memory
    idle: int  # how many of `blocks` are referenced by nobody: taking them lowers `available`
    tail_block: int  # block whose first `length % block_size` tokens are to be copied; -1 when there is none
    node: Any  # where the walk ended; for the cache itself


Change = int | tuple[int | bytes, bytes] | None
"""What happened to the index: a block left it; or a block was entered below another (or directly below a namespace),
with the bytes of its tokens, where blocks entered behind it in the same call are not told; or None: all was forgotten.
"""


class Lease:
    """What one running sequence holds in the cache, besides the blocks in its block table."""

    __slots__ = ("namespace", "node", "registered", "shadow")

    def __init__(self, namespace: bytes, node: Any, registered: int) -> None:
        self.namespace = namespace
        self.node = node  # deepest node of the sequence's own path
        self.registered = registered  # whole blocks of the sequence known to the cache so far
        self.shadow: list[int] = []  # cached twins of blocks the sequence computed itself; referenced, not in its table


class LowerTier(Protocol):
    """Where contents go that a cache gives up."""

    def root(self, namespace: bytes) -> bytes:
        """What the content keys of a namespace's blocks start from; see `content`."""
        ...

    def demote(self, block: int, key: bytes) -> None:
        """The contents `key` of a device block, written by an earlier step, are evicted now."""
        ...


class KVCache(Protocol):
    """Reference-counted blocks with a prefix index over them.

    A block is free (nobody refers to it, contents unknown), cached (nobody refers to it, contents indexed), or held
    (referred to by one or more sequences; indexed or not). free + cached + held = num_blocks.
    """

    block_size: int
    num_blocks: int
    generation: int
    """Changes whenever a `match` made before could come out differently now."""
    changes: list[Change] | None
    """Where somebody put a list here, the cache appends every change of its index; None: nobody wants to know."""
    lower: LowerTier | None
    """Told of every indexed block that is evicted; None: nobody keeps them."""

    @property
    def available(self) -> int:
        """Blocks `allocate` could give now: free + cached."""
        ...

    @property
    def free(self) -> int:
        """Blocks whose contents are unknown and that nobody refers to."""
        ...

    def begin_step(self) -> None:
        """A new step is being scheduled: whatever was registered before is written by now."""
        ...

    def match(self, tokens: bytes, length: int, namespace: bytes = b"") -> Match:
        """Longest cached prefix of the first `length` tokens. Touches nothing (recency changes on `release`).

        A tail hit (token-exact, inside a block) is only given from a block registered before this step.
        """
        ...

    def continues(self, match: Match, block: bytes) -> bool:
        """Is there a cached block with these tokens behind the whole blocks of a match that is not out of date?"""
        ...

    def open(self, match: Match, namespace: bytes = b"") -> Lease:
        """Take the matched whole blocks: refer to each once. The tail block, if any, is not referred to."""
        ...

    def allocate(self, count: int) -> Sequence[int]:
        """`count` blocks, each referred to once, evicting cached ones as needed. ValueError above `available`."""
        ...

    def register(self, lease: Lease, tokens: IntArray, blocks: IntArray, whole: int) -> None:
        """Enter blocks `lease.registered` to `whole` (exclusive) of the sequence; they are full after this step.

        `tokens` [>= whole * block_size] and `blocks` [>= whole] are the sequence's row of the scheduler's matrices.
        """
        ...

    def unregister(self, lease: Lease, blocks: IntArray, whole: int) -> None:
        """Undo: keep only the first `whole` blocks registered. For blocks whose K/V were not written after all."""
        ...

    def release(self, lease: Lease, blocks: IntArray) -> None:
        """The sequence leaves: drop one reference of each of its blocks (its whole table row, `[held]`).

        Indexed blocks with no reference left stay cached; the others become free.
        """
        ...

    def reset(self) -> bool:
        """Forget all cached contents that no sequence refers to; held blocks lose their index entry. True if all."""
        ...

    def check(self, held: Iterable[tuple[Lease, Sequence[int]]]) -> None:
        """Prove the accounting against every live (lease, block table). AssertionError says what differs."""
        ...
