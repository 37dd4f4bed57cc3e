"""How much of every waiting sequence is cached, kept up to date by what changes in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.request import Sequence
from paceline.kv.interface import KVCache

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder

_MOST_CHANGES = 100_000  # noted between two looks; beyond them all sequences are matched again
_TOKEN_BYTES = 4

Members = dict[Sequence, None]  # in order of entry, so that nothing depends on addresses


class PrefixWatch:
    """Whole cached blocks of the sequences it watches.

    A match changes in two ways only: its last block leaves the index, or the block that would come next is entered
    below it. So each sequence is filed under these two, and only those that a change of the cache names are matched
    again. While it watches nobody, the cache notes nothing.
    """

    def __init__(self) -> None:
        self._kv: KVCache | None = None  # where changes are noted for us
        self._stale: Members = {}  # to be matched again
        self._filed: dict[Sequence, tuple[int, tuple[int | bytes, bytes] | None]] = {}  # (last block, next one)
        self._by_last: dict[int, Members] = {}
        self._by_next: dict[tuple[int | bytes, bytes], Members] = {}

    def add(self, sequence: Sequence) -> None:
        self._stale[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        if sequence in self._stale:
            del self._stale[sequence]
        else:
            self._take_out(sequence)
        if not self._stale and not self._filed and self._kv is not None:
            self._kv.changes = None
            self._kv = None

    def refresh(self, builder: StepBuilder) -> list[tuple[Sequence, int]]:
        """Those whose cached tokens may have changed since the last look, with how many there are now."""
        kv = builder.kv
        if self._kv is None and self._stale:
            self._kv, kv.changes = kv, []  # everybody is new: nothing that happened before matters
        elif kv.changes:
            self._read(kv)
        if not self._stale:
            return []
        stale, self._stale = self._stale, {}
        return [(sequence, self._match(builder, sequence)) for sequence in stale]

    def _read(self, kv: KVCache) -> None:
        changes = kv.changes
        assert changes is not None
        if len(changes) > _MOST_CHANGES:
            changes[:] = [None]
        for change in changes:
            if type(change) is int:
                members = self._by_last.get(change)
            elif change is None:
                members = dict.fromkeys(self._filed)
            else:
                members = self._by_next.get(change)  # type: ignore[arg-type]
            if members is not None:
                for sequence in list(members):
                    self._take_out(sequence)
                    self._stale[sequence] = None
        changes.clear()

    def _match(self, builder: StepBuilder, sequence: Sequence) -> int:
        match = builder.lookup(sequence)
        whole, size = len(match.blocks), builder.kv.block_size
        last = int(match.blocks[-1]) if whole else -1
        after: tuple[int | bytes, bytes] | None = None
        if sequence.key is not None and (whole + 1) * size < int(sequence.tokens.size):
            width = size * _TOKEN_BYTES
            after = (last if whole else sequence.namespace, sequence.key[whole * width : (whole + 1) * width])
            self._by_next.setdefault(after, {})[sequence] = None
        if whole:
            self._by_last.setdefault(last, {})[sequence] = None
        self._filed[sequence] = (last, after)
        return whole * size

    def _take_out(self, sequence: Sequence) -> None:
        last, after = self._filed.pop(sequence)
        if last >= 0:
            members = self._by_last[last]
            del members[sequence]
            if not members:
                del self._by_last[last]
        if after is not None:
            members = self._by_next[after]
            del members[sequence]
            if not members:
                del self._by_next[after]
