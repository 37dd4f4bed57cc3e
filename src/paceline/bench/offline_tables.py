"""Offline runs as tables and as JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.bench.memory import Memory
from paceline.bench.offline import PERCENTILES, Measured
from paceline.bench.tables import milliseconds, number, plain
from paceline.bench.terminal import WholeTable
from paceline.workload.export import clean, latencies

_PACKAGES = ("paceline", "torch", "numpy", "transformers", "gguf")


def print_runs(console: Console, runs: list[Measured]) -> None:
    """One column a run."""
    table = _table("", *[run.label for run in runs])
    for name, cells in _rows(runs):
        table.add_row(name, *cells)
    console.print(table)


def _rows(runs: list[Measured]) -> list[tuple[str, list[str]]]:
    figures, whole = [run.figures for run in runs], [run.stretch for run in runs]
    rows = [
        ("seconds", [number(one.seconds) for one in figures]),
        ("output tokens/s", [number(one.output_rate) for one in figures]),
        ("prompt tokens/s, to the last first token", [number(one.prompt_rate) for one in figures]),
        ("requests/s", [number(one.request_rate) for one in figures]),
    ]
    if any(one.decode_rate > 0 for one in figures):
        rows.append(("tokens/s while all decode", [number(one.decode_rate) for one in figures]))
        rows.append(("ms/token of a stream then", [number(one.ms_per_token) for one in figures]))
    for label, name in (("TTFT", "ttft"), ("TPOT", "tpot")):
        for percent in PERCENTILES:
            rows.append((f"{label} p{percent:g}", [milliseconds(getattr(one, name).at(percent)) for one in whole]))
    counted = [run.counters for run in runs]
    if all("steps" in one for one in counted):
        rows.append(("steps", [number(one["steps"]) for one in counted]))
        rows.append(("preemptions", [number(one["preemptions"]) for one in counted]))
        rows.append(("prompt tokens from the cache", [number(one["prefix_hit_tokens"]) for one in counted]))
        rows.append(("ms a step around the model", [_around(one) for one in counted]))
    return rows


def _around(counters: dict[str, float]) -> str:
    spent = counters["busy_seconds"] - counters["execute_seconds"]
    return number(spent / max(counters["steps"], 1.0) * 1e3)


def print_memory(console: Console, memory: Memory) -> None:
    """Where the memory of the process is."""
    table = _table("memory, MiB", "now")
    for name, size in (
        ("resident", memory.resident),
        ("  weights", memory.weights),
        (f"  KV written to, of {_mib(memory.kv_configured)} configured", memory.kv_resident),
        ("  rest", memory.rest),
        ("most it ever was", memory.peak),
    ):
        table.add_row(name, _mib(size))
    console.print(table)


def values(run: Measured) -> dict[str, Any]:
    """A run for a JSON file."""
    found = {
        "label": run.label,
        "workload": run.workload.describe(),
        "arrivals": run.workload.arrivals,
        "requests": len(run.records),
        "prompt_tokens": int(run.records.prompt_tokens.sum()),
        "output_tokens": int(run.records.output_tokens.sum()),
        **asdict(run.figures),
        **latencies(run.stretch),
        "counters": run.counters,
    }
    return clean(found)


def machine() -> dict[str, Any]:
    """What it ran on and with."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": _cpu(), "cores": cores, "system": platform.platform(), "versions": versions}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f}"


def _table(*columns: str) -> WholeTable:
    return WholeTable(*map(plain, columns))
