"""The tiers below the device: which contents lie on the host and on disk, and what each step has to move."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from paceline.kv.content import root_key
from paceline.kv.host_pool import HostPool


class Moves:
    """What the step being scheduled moves between tiers, in the order an executor does it."""

    __slots__ = ("drop", "from_disk", "out", "to_disk")

    def __init__(self) -> None:
        self.drop: list[bytes] = []  # keys to remove from disk
        self.to_disk: list[tuple[int, bytes]] = []  # host block -> key
        self.from_disk: list[tuple[bytes, int]] = []  # key -> host block
        self.out: list[tuple[int, int]] = []  # device block -> host block

    def __bool__(self) -> bool:
        return bool(self.out or self.to_disk or self.from_disk)


class Tiers(HostPool):
    """A host pool with a cache in it, and a cache on disk behind that. Accounting only: no bytes, no files.

    A host block has one owner: nobody (free, or returning), a swapped sequence, the cache, or a move under way.
    Cached ones are given up, least recently used first, to whoever asks for room, and go to disk where there is one.

    INVARIANT: a key is found only when its bytes were written by a step that was executed. What a step moves is not
    found before `commit`, which follows its execution, and is forgotten by `undo` when it was not executed.
    """

    def __init__(self, num_host_blocks: int, num_disk_blocks: int = 0, identity: bytes = b"") -> None:
        super().__init__(num_host_blocks)
        self.num_disk_blocks = num_disk_blocks
        self.identity = identity
        self.moves = Moves()
        self.cached: OrderedDict[bytes, int] = OrderedDict()  # key -> host block, least recently used first
        self.disk: OrderedDict[bytes, None] = OrderedDict()  # keys, least recently used first
        self._arriving: dict[bytes, int] = {}  # key -> host block that this step writes
        self._written: dict[bytes, None] = {}  # keys that this step writes to disk
        self._pinned: set[bytes] = set()  # keys this step reads on the host; not to be given up
        self._reading: set[bytes] = set()  # keys this step reads from disk

    @property
    def available(self) -> int:
        return len(self._free) + len(self.cached) - len(self._pinned)

    def root(self, namespace: bytes) -> bytes:
        """What the keys of a namespace's blocks start from."""
        return root_key(self.identity, namespace)

    def begin_step(self) -> None:
        super().begin_step()
        self._pinned.clear()
        self._reading.clear()

    # -- making room ------------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int]:
        """`count` host blocks, from cached ones where need be. ValueError above `available`."""
        if count <= self.available:
            while len(self._free) < count:
                self._give_up()
        return super().allocate(count)

    def _give_up(self) -> None:
        """Take the block of the least recently used key that this step does not read."""
        key = next(key for key in self.cached if key not in self._pinned)
        block = self.cached.pop(key)
        self._free.append(block)
        if key not in self.disk and self._room_on_disk():
            self._write(key, block)

    def _room_on_disk(self) -> bool:
        """Make sure that one more key fits on disk. False: it does not."""
        while len(self.disk) + len(self._written) >= self.num_disk_blocks:
            oldest = next((key for key in self.disk if key not in self._reading), None)
            if oldest is None:
                return False
            del self.disk[oldest]
            self.moves.drop.append(oldest)
        return True

    def _write(self, key: bytes, block: int) -> None:
        self._written[key] = None
        self.moves.to_disk.append((block, key))

    # -- down -------------------------------------------------------------------------------------------------------

    def demote(self, block: int, key: bytes) -> None:
        """A device block with the contents `key` is about to be overwritten: keep them, where there is room."""
        if key in self.cached:
            self.cached.move_to_end(key)
        elif key not in self._arriving and self.available:
            (host,) = self.allocate(1)
            self._arriving[key] = host
            self.moves.out.append((block, host))

    def flush(self) -> None:
        """Write what is cached on the host to disk as well, the most recently used as far as there is room."""
        wanted = list(self.cached)[max(len(self.cached) - self.num_disk_blocks, 0) :]
        for key in wanted:
            if key in self.disk:
                self.disk.move_to_end(key)
        for key in wanted:
            if key not in self.disk and self._room_on_disk():
                self._write(key, self.cached[key])

    # -- up ---------------------------------------------------------------------------------------------------------

    def run(self, keys: Sequence[bytes], first: int) -> tuple[int, int, list[bytes]]:
        """From `keys[first]` on: how many lie on the host without a gap; how many on host or disk without a gap; and
        which of these are only on disk."""
        at, host = first, self.cached
        while at < len(keys) and keys[at] in host:
            at += 1
        near = at - first
        missing: list[bytes] = []
        if self.disk:
            while at < len(keys) and (keys[at] in host or keys[at] in self.disk):
                if keys[at] not in host:
                    missing.append(keys[at])
                at += 1
        return near, at - first, missing

    def pin(self, keys: Sequence[bytes]) -> list[int]:
        """The host blocks of `keys`, which this step reads. The first of a chain is given up last."""
        for key in reversed(keys):
            self.cached.move_to_end(key)
        self._pinned.update(keys)
        return [self.cached[key] for key in keys]

    def fetch(self, keys: Sequence[bytes]) -> int:
        """Bring keys from disk to the host with this step, the first as far as there is room. How many come."""
        fresh = [key for key in keys if key not in self._arriving][: self.available]
        self._reading.update(fresh)
        for key in reversed(fresh):  # the first of a chain is given up last
            self.disk.move_to_end(key)
            (host,) = self.allocate(1)
            self._arriving[key] = host
            self.moves.from_disk.append((key, host))
        return sum(key in self._arriving for key in keys)

    def adopt(self, keys: Iterable[bytes]) -> None:
        """Contents that are on disk already, the least recently used first. At most as many as there is room for."""
        for key in keys:
            self.disk[key] = None

    # -- after the step ---------------------------------------------------------------------------------------------

    def commit(self, lost: Iterable[bytes] = ()) -> None:
        """The step's moves were done, but for those of the keys in `lost`, which disk did not take or give."""
        gone = set(lost)
        for key, block in self._arriving.items():
            if key in gone:
                self._free.append(block)
            else:
                self.cached[key] = block
        for key in self._written:
            self.disk[key] = None
        for key in gone:
            self.disk.pop(key, None)
        self._forget_moves()

    def undo(self) -> None:
        """The step was not executed: nothing of what it was to write is there."""
        self._free += self._arriving.values()
        orphans = [key for key in (*self.moves.drop, *self._written) if key not in self.disk]
        self._forget_moves()
        self.moves.drop = orphans

    def _forget_moves(self) -> None:
        self._arriving, self._written = {}, {}
        self._pinned.clear()
        self._reading.clear()
        self.moves = Moves()

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Prove that every host block has one owner, `held` being those of swapped sequences, and disk is in bounds."""
        super().check([*held, list(self.cached.values()), list(self._arriving.values())])
        assert not self.cached.keys() & self._arriving.keys(), "a key is cached on the host and arriving there"
        assert not self.disk.keys() & self._written.keys(), "a key is on disk and being written there"
        assert self._pinned <= self.cached.keys(), "a key is pinned that is not cached"
        assert self._reading <= self.disk.keys(), "a key is read from disk that is not there"
        assert len(self.disk) + len(self._written) <= self.num_disk_blocks, "more on disk than there is room for"
