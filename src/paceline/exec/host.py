"""What the machine offers: memory that is free now, cores, and the fast number format."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")


def available_memory(device: torch.device) -> int:
    """Bytes that could be allocated on `device` now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_system_available(), _cgroup_available())


def total_memory(device: torch.device) -> int:
    """Bytes of memory of a CUDA device."""
    return int(torch.cuda.mem_get_info(device)[1])


def _system_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 << 30  # a system that tells neither; small enough to be safe on today's machines


def _cgroup_available() -> int:
    """What the container's limit leaves; file pages count as free, since the kernel gives them up first."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        statistics = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 1 << 62
    if limit == "max":
        return 1 << 62
    return max(0, int(limit) - used + int(statistics.get("inactive_file", 0)))


def physical_cores() -> int:
    """Physical cores this process may use: hardware threads that share a core count once."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:
        return max(1, os.cpu_count() or 1)
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, min(len(cores), _cgroup_cores()))


def _cgroup_cores() -> int:
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return 1 << 20 if quota == "max" else max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):
        return 1 << 20


def set_threads(threads: int | None) -> int:
    """Fix how many threads torch computes with (process-wide) and return the number."""
    count = threads or physical_cores()
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    return count


def give_back_memory() -> None:
    """Return to the system what loading a model has freed; the allocator would keep it."""
    with suppress(OSError, AttributeError):  # not the C library of GNU
        ctypes.CDLL(None).malloc_trim(0)


def fastest_dtype(device: torch.device) -> torch.dtype:
    """The format `--dtype auto` stands for on this device."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    capabilities = torch.cpu.get_capabilities()
    fast = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return torch.bfloat16 if fast else torch.float32
