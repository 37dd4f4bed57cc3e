"""A run as it was measured: when requests were due, how long they were, and what each took."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError
from paceline.sim.json_files import read_json
from paceline.workload.packed import PackedRequests
from paceline.workload.requests import Workload

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredRun:
    """Columns [requests] in order of arrival, seconds. Prompts are not kept, and taken to share nothing."""

    name: str
    arrival: Floats
    prompt_tokens: npt.NDArray[np.int32]
    output_tokens: npt.NDArray[np.int32]
    ttft: Floats  # from the arrival to the first token
    e2e: Floats  # ... to the last

    @staticmethod
    def of(
        name: str,
        arrival: npt.ArrayLike,
        prompt_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike,
        ttft: npt.ArrayLike,
        e2e: npt.ArrayLike,
    ) -> MeasuredRun:
        """From columns in any order, all of one length."""
        due = np.asarray(arrival, np.float64)
        order = np.argsort(due, kind="stable")
        return MeasuredRun(
            name,
            due[order] - due.min(),
            np.asarray(prompt_tokens, np.int32)[order],
            np.asarray(output_tokens, np.int32)[order],
            np.asarray(ttft, np.float64)[order],
            np.asarray(e2e, np.float64)[order],
        )

    @property
    def tpot(self) -> Floats:
        """Seconds a token after the first; NaN where there was only one, or all came at once."""
        known = (self.output_tokens > 1) & (self.e2e > self.ttft)
        return np.asarray((self.e2e - self.ttft) / np.where(known, self.output_tokens - 1, np.nan), np.float64)

    @property
    def decoding(self) -> float:
        """Requests that had their first token and not yet their last, on average over the run."""
        return float((self.e2e - self.ttft).sum() / (self.arrival + self.e2e).max())

    @property
    def workload(self) -> Workload:
        """What was sent."""
        keys = np.arange(1, self.arrival.size + 1)
        return Workload(
            PackedRequests(self.arrival, self.prompt_tokens, self.output_tokens, keys), self.name, "recorded"
        )


def read_result(path: Path) -> MeasuredRun:
    """From a result with one entry a request: `paceline bench serve --save-detailed`, or vLLM's of the same name.

    Requests that failed are left out. ModelError says what is wrong with the file.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise ModelError(f"{path}: holds {type(values).__name__}, not the figures of one run")
    due = values.get("scheduled_times") or values.get("start_times")
    columns = {"start_times": due, **{name: values.get(name) for name in ("input_lens", "output_lens", "ttfts")}}
    if missing := [name for name, column in columns.items() if not column]:
        raise ModelError(f"{path}: has no {', '.join(missing)}: save the run with --save-detailed")
    try:
        return _run(path.stem, columns, values)
    except (TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{path}: its lists per request do not belong together ({error})") from None


def _run(name: str, columns: dict[str, Any], values: dict[str, Any]) -> MeasuredRun:
    ttfts = columns["ttfts"]
    # vLLM keeps no latency of a request, but all its gaps between tokens.
    e2e = values.get("latencies") or [
        first + sum(gaps) for first, gaps in zip(ttfts, values.get("itls") or [], strict=True)
    ]
    errors = values.get("errors") or [""] * len(ttfts)
    rows = list(
        zip(columns["start_times"], columns["input_lens"], columns["output_lens"], ttfts, e2e, errors, strict=True)
    )
    good = [row[:5] for row in rows if not row[5] and row[2] > 0 and 0 < row[3] <= row[4]]
    if not good:
        raise ValueError("no request was answered")
    return MeasuredRun.of(name, *zip(*good, strict=True))
