"""Runs as JSON files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from paceline.bench.errors import BenchError
from paceline.workload.export import detail
from paceline.workload.run import Run


def run_values(run: Run, detailed: bool = False) -> dict[str, Any]:
    """A run under vLLM's names; `detailed` adds a list entry per request and the server's timeline."""
    values = run.as_json()
    if detailed:
        line = run.timeline
        values |= detail(run.records)
        values["timeline"] = {
            "at_s": line.at,
            "running": line.running,
            "waiting": line.waiting,
            "kv_usage": line.kv,
            "generated_tokens": line.generated,
        }
    return values


def save(path: Path, values: Any) -> Path:
    """Write JSON; BenchError where the file cannot be written."""
    try:
        path.write_text(json.dumps(values, indent=1) + "\n")
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error}") from None
    return path


def default_name(run: Run) -> str:
    """`openai-2.0qps-model-20250101-120000.json`, as vLLM names them."""
    rate = "inf" if run.rate == float("inf") else f"{run.rate:.3g}"
    model = re.sub(r"[^\w.-]+", "_", str(run.facts.get("model_id", "model")).rsplit("/", 1)[-1])
    stamp = re.sub(r"[^\dT]", "", str(run.facts.get("date", "")))[:15].replace("T", "-")
    cap = f"-concurrency{run.concurrency}" if run.concurrency else ""
    return f"{run.facts.get('backend', 'run')}-{rate}qps{cap}-{model}-{stamp}.json"
