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
Place = int | bytes  # the last cached block, or, where there is none, the namespace


class _Group:
    """Sequences whose cached prefix is one and the same, by the tokens of the block that comes next in each."""

    __slots__ = ("by_next", "depth", "place")

    def __init__(self, place: Place, depth: int) -> None:
        self.place = place
        self.depth = depth  # blocks cached
        self.by_next: dict[bytes, Members] = {}  # b"": those of which no more could be taken from the cache

    def members(self) -> list[Sequence]:
        return [sequence for members in self.by_next.values() for sequence in members]


class PrefixWatch:
    """Whole cached blocks of the sequences it watches.

    A match changes in two ways only: its last block leaves the index, or the block that would come next is entered
    below it. So each sequence is filed under these two, and only those that a change of the cache names are looked at
    again, those that share a prefix together. While it watches nobody, the cache notes nothing.
    """

    def __init__(self) -> None:
        self._kv: KVCache | None = None  # where changes are noted for us
        self._new: Members = {}  # to be matched from scratch
        self._groups: dict[Place, _Group] = {}
        self._filed: dict[Sequence, tuple[_Group, bytes]] = {}

    def add(self, sequence: Sequence) -> None:
        self._new[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        if sequence in self._new:
            del self._new[sequence]
        else:
            group, after = self._filed.pop(sequence)
            members = group.by_next[after]
            del members[sequence]
            if not members:
                del group.by_next[after]
                if not group.by_next:
                    del self._groups[group.place]
        if not self._new and not self._filed and self._kv is not None:
            self._kv.changes = None
            self._kv = None

    def refresh(self, builder: StepBuilder) -> list[tuple[Sequence, int]]:
        """Those whose cached tokens may have changed since the last look, with how many there are now."""
        kv, changed = builder.kv, []
        if self._kv is None and self._new:
            self._kv, kv.changes = kv, []  # everybody is new: nothing that happened before matters
        elif kv.changes:
            changed = self._read(builder, kv)
        if self._new:
            new, self._new = self._new, {}
            changed += [self._match(builder, sequence) for sequence in new]
        return changed

    def _read(self, builder: StepBuilder, kv: KVCache) -> list[tuple[Sequence, int]]:
        """Follow what changed. A match is made of the cache as it is by now, so a later change may find it done."""
        changes, kv.changes = kv.changes or [], []
        changed: list[tuple[Sequence, int]] = []
        groups = self._groups
        if len(changes) > _MOST_CHANGES:
            changes = [None]
        for change in changes:
            if type(change) is int:
                group = groups.pop(change, None)
                if group is not None:
                    changed += self._shrink(builder, group)
            elif change is None:
                changed = []
                self._new = dict.fromkeys((*self._filed, *self._new))
                self._filed.clear()
                groups.clear()
            else:
                place, key = change  # type: ignore[misc]
                group = groups.get(place)
                if group is not None and key in group.by_next:
                    changed += self._grow(builder, group, key)
        return changed

    def _shrink(self, builder: StepBuilder, group: _Group) -> list[tuple[Sequence, int]]:
        """Its last block is gone: as long as nothing has taken its place, all have lost the same."""
        members = group.members()
        match = builder.lookup(members[0])
        depth = len(match.blocks)
        if depth >= group.depth:
            return [self._match(builder, sequence) for sequence in members]
        tokens, width = depth * builder.kv.block_size, builder.kv.block_size * _TOKEN_BYTES
        assert members[0].key is not None
        after = members[0].key[depth * width : (depth + 1) * width]
        target = self._group(int(match.blocks[-1]) if depth else members[0].namespace, depth)
        target.by_next.setdefault(after, {}).update(dict.fromkeys(members))
        filed = (target, after)
        for sequence in members:
            self._filed[sequence] = filed
        return [(sequence, tokens) for sequence in members]

    def _grow(self, builder: StepBuilder, group: _Group, key: bytes) -> list[tuple[Sequence, int]]:
        """The next block of some is there: where one of them stops, the others mostly do."""
        members = group.by_next.pop(key)
        if not group.by_next:
            del self._groups[group.place]
        first = next(iter(members))
        match = builder.lookup(first)
        assert first.key is not None
        size, depth = builder.kv.block_size, len(match.blocks)
        width = size * _TOKEN_BYTES
        shared = first.key[: depth * width]
        place = int(match.blocks[-1]) if depth else first.namespace
        changed = []
        for sequence in members:
            assert sequence.key is not None
            after = self._after(sequence, depth, size)
            if after and sequence.key.startswith(shared) and not builder.kv.continues(match, after):
                self._file(sequence, place, depth, after)
                changed.append((sequence, depth * size))
            else:
                changed.append(self._match(builder, sequence))
        return changed

    def _match(self, builder: StepBuilder, sequence: Sequence) -> tuple[Sequence, int]:
        match = builder.lookup(sequence)
        depth, size = len(match.blocks), builder.kv.block_size
        place = int(match.blocks[-1]) if depth else sequence.namespace
        self._file(sequence, place, depth, self._after(sequence, depth, size))
        return sequence, depth * size

    @staticmethod
    def _after(sequence: Sequence, depth: int, size: int) -> bytes:
        """The tokens of block `depth` of the sequence; empty where it could not be taken from the cache."""
        if sequence.key is None or (depth + 1) * size >= int(sequence.tokens.size):
            return b""
        width = size * _TOKEN_BYTES
        return sequence.key[depth * width : (depth + 1) * width]

    def _group(self, place: Place, depth: int) -> _Group:
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = _Group(place, depth)
        return group

    def _file(self, sequence: Sequence, place: Place, depth: int, after: bytes) -> None:
        group = self._group(place, depth)
        group.by_next.setdefault(after, {})[sequence] = None
        self._filed[sequence] = (group, after)
