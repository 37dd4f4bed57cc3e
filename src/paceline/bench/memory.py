"""What a process holds in memory, and how much of a stretch of its address space is really there."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """Bytes. `rest` is what neither weights nor KV account for: the interpreter, libraries, activations."""

    resident: int
    peak: int
    weights: int
    kv_configured: int
    kv_resident: int
    """Of the configured KV, what has been written to; the system gives the rest when it is."""

    @property
    def rest(self) -> int:
        return self.resident - self.weights - self.kv_resident


def status(pid: int | None = None) -> tuple[int, int]:
    """(bytes resident now, most there ever were) of a process, this one by default; (0, 0) off Linux."""
    found = {}
    try:
        for line in Path(f"/proc/{'self' if pid is None else pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found[name] = int(value.split()[0]) * 1024
    except OSError:
        return 0, 0
    return found.get("VmRSS", 0), found.get("VmHWM", 0)


def resident_bytes(stretches: Iterable[tuple[int, int]]) -> int:
    """Bytes of those (address, size) stretches of this process that lie in memory; all of them where none can tell."""
    total, page = 0, mmap.PAGESIZE
    mincore = getattr(ctypes.CDLL(None), "mincore", None)
    for address, size in stretches:
        begin = address // page * page
        pages = -(-(address + size - begin) // page)
        seen = (ctypes.c_ubyte * pages)()
        if mincore is None or mincore(ctypes.c_void_p(begin), ctypes.c_size_t(pages * page), seen) != 0:
            total += size
            continue
        total += min(size, sum(byte & 1 for byte in bytes(seen)) * page)
    return total
