"""K/V blocks on disk: one file each, named by its content key, that outlive the process."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from paceline.errors import ConfigError

logger = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]

_MAGIC = b"PLKV0001"
_HEADER = struct.Struct("<8s32s20sQ32s")  # magic, identity, key, bytes of K/V, their sha256
_NAME = re.compile(r"^([0-9a-f]{40})\.kv$")
_UNDER_WAY = 64  # blocks handed over for writing and not written yet; beyond them a step waits
DEFAULT_SIZE = 16 << 30


class DiskBlocks:
    """A directory of its own for each model below `path`, so that several share a path.

    A file is written under another name and then renamed, so that one with the right name is whole, and its header
    says for which model, which contents, and with which checksum. What says otherwise is not used: a block is
    believed when model, key, length and checksum agree, and only then.

    Writing goes on beside the steps, in a thread.
    """

    def __init__(self, path: str, size: int | None, identity: bytes, block_bytes: int) -> None:
        """`size`: bytes to use at most; None: 16 GiB, or half of what is free. `identity`: [32] of the model.

        ConfigError when the directory cannot be used.
        """
        self.identity, self.block_bytes = identity, block_bytes
        self.folder = Path(path).expanduser() / identity.hex()[:24]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock(path)
            self.found = self._scan()
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise ConfigError("--disk-kv", path, f"a directory that can be written ({error.strerror})") from error
        each = block_bytes + _HEADER.size
        room = free + len(self.found) * each
        self.size = min(DEFAULT_SIZE, room // 2) if size is None else size
        self.num_blocks = self.size // each
        if self.size > room:
            raise ConfigError("--disk-kv-size", self.size, f"at most {room}: so much is free there")
        if self.num_blocks < 1:
            raise ConfigError("--disk-kv-size", self.size, f"at least {each}, one block with its header")
        for key in self.found[: -self.num_blocks]:
            self._path(key).unlink(missing_ok=True)
        self.found = self.found[-self.num_blocks :]
        self._writer = ThreadPoolExecutor(1, "paceline-disk")
        self._writing: dict[bytes, Future[bool]] = {}
        self._lost: list[bytes] = []
        self._warned = False
        self._damaged = 0

    def _take_lock(self, path: str) -> BinaryIO:
        """Two engines would delete each other's blocks."""
        file = (self.folder / "lock").open("wb")
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ModuleNotFoundError:  # Windows
            pass
        except OSError:
            file.close()
            raise ConfigError("--disk-kv", path, "a directory that no other engine uses for this model") from None
        return file

    def _scan(self) -> list[bytes]:
        """The keys of files that look right, the least recently used first. One warning for the others."""
        found: list[tuple[int, bytes]] = []
        strange: list[str] = []
        for entry in os.scandir(self.folder):
            if entry.name == "lock":
                continue
            if entry.name.endswith(".tmp"):  # a write that a crash cut off
                os.unlink(entry.path)
                continue
            name = _NAME.match(entry.name)
            if name is not None and self._looks_right(Path(entry.path), bytes.fromhex(name[1])):
                found.append((entry.stat().st_mtime_ns, bytes.fromhex(name[1])))
            else:
                strange.append(entry.name)
        if strange:
            logger.warning(
                "%s: %d files are damaged or not ours and are ignored (the first: %s)",
                self.folder,
                len(strange),
                min(strange),
            )
        return [key for _, key in sorted(found)]

    def _looks_right(self, path: Path, key: bytes) -> bool:
        try:
            with path.open("rb") as file:
                header = file.read(_HEADER.size)
                size = os.fstat(file.fileno()).st_size
        except OSError:
            return False
        return size == _HEADER.size + self.block_bytes and header.startswith(self._start(key))

    def _start(self, key: bytes) -> bytes:
        """The header but for the checksum."""
        return _HEADER.pack(_MAGIC, self.identity, key, self.block_bytes, b"")[:-32]

    def _path(self, key: bytes) -> Path:
        return self.folder / f"{key.hex()}.kv"

    # -- blocks -----------------------------------------------------------------------------------------------------

    def write(self, key: bytes, block: Bytes) -> None:
        """[block_bytes] uint8, copied before this returns. Whether it was written: `lost`."""
        while len(self._writing) >= _UNDER_WAY:
            next(iter(self._writing.values())).result()
            self._settle()
        self._writing[key] = self._writer.submit(self._write, key, block.tobytes())

    def _write(self, key: bytes, data: bytes) -> bool:
        path = self._path(key)
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                file.write(self._start(key) + hashlib.sha256(data).digest())
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            if not self._warned:
                logger.warning("%s: K/V cannot be written to disk: %s", path, error.strerror)
            self._warned = True
            return False
        return True

    def read(self, key: bytes, block: Bytes) -> bool:
        """Fill `block`. False, and a warning, when the file is not what was written."""
        if key in self._writing:
            self._writing[key].result()
        path = self._path(key)
        try:
            with path.open("rb", buffering=0) as file:
                header = file.read(_HEADER.size)
                whole = file.readinto(block.data) == self.block_bytes and not file.read(1)
            right = whole and header == self._start(key) + hashlib.sha256(block.data).digest()
            if right:
                os.utime(path)  # used just now, also for who comes after a restart
                return True
            reason = "it is not what was written"
        except OSError as error:
            reason = str(error.strerror)
        self._damaged += 1
        if self._damaged == 1:  # what is wrong with one is wrong with many; the counts are in the metrics
            logger.warning("%s: ignored, and computed again: %s; others like it are not named", path, reason)
        path.unlink(missing_ok=True)
        return False

    def drop(self, key: bytes) -> None:
        """Remove a block."""
        if key in self._writing:
            self._writing[key].result()
        self._path(key).unlink(missing_ok=True)

    def lost(self) -> list[bytes]:
        """Keys whose writing has failed since the last call."""
        self._settle()
        lost, self._lost = self._lost, []
        return lost

    def _settle(self) -> None:
        for key in [key for key, future in self._writing.items() if future.done()]:
            if not self._writing.pop(key).result():
                self._lost.append(key)

    def close(self) -> None:
        """Finish what is being written."""
        self._writer.shutdown(wait=True)
        self._lock.close()
