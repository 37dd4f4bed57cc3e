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
Found = tuple[list[Sequence], int]  # sequences of which so many tokens are cached


class _Bundle:
    """Sequences that share their first `common` blocks, by the tokens of the block after those in each.

    All of these blocks were cached once; now the first `depth` are. So a prefix that leaves the cache and comes back
    costs its bundle, not everybody in it.
    """

    __slots__ = ("after", "by_next", "common", "depth", "place")

    def __init__(self, common: int) -> None:
        self.common = common
        self.by_next: dict[bytes, Members] = {}  # b"": those of which no more could be taken from the cache
        self.depth = 0
        self.place: Place = b""
        self.after = b""  # where `depth` is below `common`: the tokens of the block that comes next

    def first(self) -> Sequence:
        return next(iter(next(iter(self.by_next.values()))))

    def members(self) -> list[Sequence]:
        return [sequence for members in self.by_next.values() for sequence in members]


class _Filed:
    """The bundles whose cached blocks end at one place."""

    __slots__ = ("inside", "whole")

    def __init__(self) -> None:
        self.whole: _Bundle | None = None  # all of whose common blocks are cached
        self.inside: dict[bytes, dict[_Bundle, None]] = {}  # the others, by the block that comes next


class PrefixWatch:
    """Whole cached blocks of the sequences it watches.

    A match changes in two ways only: its last block leaves the index, or the block that would come next is entered
    below it. So sequences are filed under these two, in bundles of those that share a prefix, and only what a change
    of the cache names is looked at again. While it watches nobody, the cache notes nothing.
    """

    def __init__(self) -> None:
        self._kv: KVCache | None = None  # where changes are noted for us
        self._new: Members = {}  # to be matched from scratch
        self._places: dict[Place, _Filed] = {}
        self._bundles: dict[Sequence, tuple[_Bundle, bytes]] = {}  # with the key into its `by_next`

    def add(self, sequence: Sequence) -> None:
        self._new[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        if sequence in self._new:
            del self._new[sequence]
        else:
            bundle, after = self._bundles.pop(sequence)
            members = bundle.by_next[after]
            del members[sequence]
            if not members:
                self._drop(bundle, after)
        if not self._new and not self._bundles and self._kv is not None:
            self._kv.changes = None
            self._kv = None

    def refresh(self, builder: StepBuilder) -> list[Found]:
        """Those whose cached tokens may have changed since the last look; of one named twice the last counts."""
        kv: KVCache = builder.kv
        changed: list[Found] = []
        if self._kv is None and self._new:
            self._kv, kv.changes = kv, []  # everybody is new: nothing that happened before matters
        elif kv.changes:
            changed = self._read(builder, kv)
        if self._new:
            new, self._new = self._new, {}
            changed += [self._match(builder, sequence) for sequence in new]
        return changed

    def _read(self, builder: StepBuilder, kv: KVCache) -> list[Found]:
        """Follow what changed. A match is made of the cache as it is by now, so a later change may find it done."""
        changes, kv.changes = kv.changes or [], []
        changed: list[Found] = []
        places = self._places
        if len(changes) > _MOST_CHANGES:
            changes = [None]
        for change in changes:
            if type(change) is int:
                if (filed := places.pop(change, None)) is not None:
                    changed += self._shrink(builder, filed)
            elif change is None:
                changed = []
                self._new = dict.fromkeys((*self._bundles, *self._new))
                self._bundles.clear()
                places.clear()
            else:
                place, key = change  # type: ignore[misc]
                if (filed := places.get(place)) is not None:
                    changed += self._grow(builder, filed, key)
        return changed

    # -- what a change does to those it names -------------------------------------------------------------------------

    def _shrink(self, builder: StepBuilder, filed: _Filed) -> list[Found]:
        """The last block is gone: as long as nothing has taken its place, all have lost the same."""
        bundles = [bundle for some in filed.inside.values() for bundle in some]
        if filed.whole is not None:
            bundles.append(filed.whole)
        match = builder.lookup(bundles[0].first())
        depth = len(match.blocks)
        if depth >= bundles[0].depth:
            return [self._match(builder, sequence) for bundle in bundles for sequence in bundle.members()]
        place = match.blocks[-1] if depth else bundles[0].first().namespace
        for bundle in bundles:
            self._file(builder, bundle, place, depth)
        return [(bundle.members(), depth * builder.kv.block_size) for bundle in bundles]

    def _grow(self, builder: StepBuilder, filed: _Filed, key: bytes) -> list[Found]:
        """The next block of some is there: where one of a bundle stops, the others mostly do."""
        bundles = list(filed.inside.get(key, ()))
        if filed.whole is not None and key in filed.whole.by_next:
            bundles.append(self._split(filed.whole, key))
        changed: list[Found] = []
        for bundle in bundles:
            if bundle.depth < bundle.common:
                self._unfile(bundle)
            changed += self._go_on(builder, bundle)
        return changed

    def _split(self, bundle: _Bundle, after: bytes) -> _Bundle:
        """A bundle of its own, not filed, for those of a bundle whose next block is this one."""
        apart = _Bundle(bundle.common)
        apart.depth = bundle.common
        apart.by_next[after] = bundle.by_next[after]
        self._drop(bundle, after)
        return apart

    def _go_on(self, builder: StepBuilder, bundle: _Bundle) -> list[Found]:
        """A bundle, not filed, is looked up by its first member; who may have more than that one is matched alone."""
        first, size = bundle.first(), builder.kv.block_size
        match = builder.lookup(first)
        depth = len(match.blocks)
        place = match.blocks[-1] if depth else first.namespace
        if depth < bundle.common:
            self._file(builder, bundle, place, depth)
            return [(bundle.members(), depth * size)]
        assert first.key is not None
        shared = first.key[: depth * size * _TOKEN_BYTES]
        stay = _Bundle(depth)
        others: list[Sequence] = []
        for known, members in bundle.by_next.items():
            if depth == bundle.common:  # they stop where the first does, unless their next block is there
                if known and builder.kv.continues(match, known):
                    others += members
                else:
                    stay.by_next[known] = members
                continue
            for sequence in members:
                after = _after(sequence, depth, size)
                alike = after and sequence.key is not None and sequence.key.startswith(shared)
                if sequence is first or (alike and not builder.kv.continues(match, after)):
                    stay.by_next.setdefault(after, {})[sequence] = None
                else:
                    others.append(sequence)
        self._name(stay)
        self._file(builder, stay, place, depth)
        return [(stay.members(), depth * size), *(self._match(builder, sequence) for sequence in others)]

    def _match(self, builder: StepBuilder, sequence: Sequence) -> Found:
        match = builder.lookup(sequence)
        depth, size = len(match.blocks), builder.kv.block_size
        place = match.blocks[-1] if depth else sequence.namespace
        filed, after = self._places.get(place), _after(sequence, depth, size)
        if filed is not None and filed.whole is not None:
            filed.whole.by_next.setdefault(after, {})[sequence] = None
            self._bundles[sequence] = (filed.whole, after)
        else:
            alone = _Bundle(depth)
            alone.by_next[after] = {sequence: None}
            self._name(alone)
            self._file(builder, alone, place, depth)
        return [sequence], depth * size

    # -- filing -------------------------------------------------------------------------------------------------------

    def _file(self, builder: StepBuilder, bundle: _Bundle, place: Place, depth: int) -> None:
        """Under where its cached blocks end now, and the block that comes next."""
        bundle.place, bundle.depth = place, depth
        filed = self._places.get(place)
        if filed is None:
            filed = self._places[place] = _Filed()
        if depth < bundle.common:
            bundle.after = _after(bundle.first(), depth, builder.kv.block_size)
            filed.inside.setdefault(bundle.after, {})[bundle] = None
        elif filed.whole is None:
            filed.whole = bundle
        else:
            for after, members in bundle.by_next.items():
                filed.whole.by_next.setdefault(after, {}).update(members)
                self._bundles.update(dict.fromkeys(members, (filed.whole, after)))

    def _name(self, bundle: _Bundle) -> None:
        """Its members are in this bundle from now on."""
        for after, members in bundle.by_next.items():
            self._bundles.update(dict.fromkeys(members, (bundle, after)))

    def _drop(self, bundle: _Bundle, after: bytes) -> None:
        """Nobody of a filed bundle has this block next any more."""
        del bundle.by_next[after]
        if not bundle.by_next:
            self._unfile(bundle)

    def _unfile(self, bundle: _Bundle) -> None:
        filed = self._places[bundle.place]
        if filed.whole is bundle:
            filed.whole = None
        else:
            alike = filed.inside[bundle.after]
            del alike[bundle]
            if not alike:
                del filed.inside[bundle.after]
        if filed.whole is None and not filed.inside:
            del self._places[bundle.place]


def _after(sequence: Sequence, depth: int, size: int) -> bytes:
    """The tokens of block `depth` of the sequence; empty where it could not be taken from the cache."""
    if sequence.key is None or (depth + 1) * size >= int(sequence.tokens.size):
        return b""
    width = size * _TOKEN_BYTES
    return sequence.key[depth * width : (depth + 1) * width]
