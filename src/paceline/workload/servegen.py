"""ServeGen: requests drawn from the rates, burstiness and lengths of a provider's clients (arXiv 2505.09999)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.workload.requests import TimedRequest, Workload, WorkloadError
from paceline.workload.trace_faults import BadRow, Faults
from paceline.workload.trace_rows import MOST_SECONDS, MOST_TOKENS, number

if TYPE_CHECKING:
    from paceline.workload.traces import ReadOptions

MOST_RATE = 1e9  # requests per second
Floats = NDArray[np.float64]


def generate(path: Path, value: Any, options: ReadOptions, faults: Faults) -> Workload:
    """The requests of `options.duration` seconds from `options.start` on; each client is a tenant."""
    clients = value.get("clients") if isinstance(value, dict) else None
    probabilities = value.get("quantile_probs") if isinstance(value, dict) else None
    if not clients or not probabilities or not isinstance(clients, list):
        raise WorkloadError(f"{path}: a ServeGen file needs clients and quantile_probs")
    width = _checked(path, "window_s", lambda: _within("window_s", value.get("window_s", 600), MOST_SECONDS))
    _checked(path, "quantile_probs", lambda: [_within("a share", one, 1.0) for one in probabilities])
    for position, client in enumerate(clients, 1):
        _checked(path, f"client {position}", lambda one=client: _check_client(one, len(probabilities)))  # type: ignore[misc]
    if not any(client["windows"] for client in clients):
        raise WorkloadError(f"{path}: no client has windows")
    begin, end = options.start, options.start + (width if options.duration is None else options.duration)
    if not 0 <= begin < end:
        raise WorkloadError(f"{path}: nothing to draw from {begin:g} s to {end:g} s")
    if begin >= max(window[0] for client in clients for window in client["windows"]) + width:
        raise WorkloadError(f"{path}: it ends before second {begin:g}")
    drawn: list[tuple[float, int, int, str]] = []
    for position, client in enumerate(clients):
        generator = np.random.default_rng((options.seed, position))
        for window in client["windows"]:
            low, high = max(begin, window[0]), min(end, window[0] + width)
            if low >= high or not window[1]:
                continue
            at = _times(window, high - low, options.rate_scale, generator) + low
            lengths = _lengths(client["length_quantiles"], np.asarray(probabilities), window[0], at.size, generator)
            drawn += zip(at.tolist(), *lengths, [f"client-{client['client']}"] * at.size, strict=True)
    drawn.sort(key=lambda one: one[0])
    requests: list[TimedRequest] = []
    for at_second, tokens_in, tokens_out, tenant in drawn[: options.limit]:
        number = len(requests)
        if tokens_in < 1 or tokens_out < 1:
            faults.counts["drawn with 0 tokens"] += 1
            continue
        out = tokens_out if options.max_output is None else min(tokens_out, options.max_output)
        parts = ((-1 - number, tokens_in),)
        requests.append(TimedRequest(str(number), at_second - begin, tokens_in, out, parts=parts, tenant=tenant))
    words = f"drawn per client (gamma and Weibull gaps per {width:g} s) from second {begin:g} to {end:g}"
    if options.rate_scale != 1:
        words += f", rates x {options.rate_scale:g}"
    workload = Workload(requests, path.name, words)
    workload.notes.append("ServeGen requests are samples of measured rates and lengths, not logged requests")
    return workload


def _checked(path: Path, where: str, check: Callable[[], Any]) -> Any:
    """What `check` finds. WorkloadError names the file and the place."""
    try:
        return check()
    except BadRow as fault:
        raise WorkloadError(f"{path}, {where}: {fault.detail}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise WorkloadError(f"{path}, {where}: is not as ServeGen has it ({type(error).__name__}: {error})") from None


def _check_client(client: dict[str, Any], probabilities: int) -> None:
    """BadRow for numbers that make no sense, KeyError and the like for what is missing."""
    str(client["client"])
    for start, rate, _, _, shape, _ in client["windows"]:
        _within("the start of a window", start, MOST_SECONDS)
        _within("the rate of a window", rate, MOST_RATE)
        _within("the shape of a window", shape or 0.0, MOST_RATE)
    for name, table in client["length_quantiles"].items():
        int(name)
        for side in ("input", "output"):
            if len([_within(f"a length of {side}", one, MOST_TOKENS) for one in table[side]]) != probabilities:
                raise BadRow("", f"{side} has {len(table[side])} lengths and there are {probabilities} quantile_probs")
    if not client["length_quantiles"] and any(window[1] for window in client["windows"]):
        raise BadRow("", "there are no length_quantiles")


def _within(name: str, value: Any, most: float) -> float:
    found = number(name, value)
    if not 0 <= found <= most:
        raise BadRow("", f"{name} is {value!r}; it must be from 0 to {most:,.0f}")
    return found


def _times(window: list[Any], length: float, scale: float, generator: np.random.Generator) -> Floats:
    """Seconds within a stretch of a window: a renewal process of the window's kind."""
    _, rate, _, kind, shape, _ = window
    rate *= scale
    at, now = [], 0.0
    while now < length:
        size = int((length - now) * rate * 1.2) + 16
        if kind == "Weibull" and shape:
            gaps = generator.weibull(shape, size)
            gaps /= _gamma_function(1 + 1 / shape)
        elif kind == "Gamma" and shape:
            gaps = generator.gamma(shape, 1 / shape, size)
        else:
            gaps = generator.exponential(1.0, size)
        chunk = now + np.cumsum(gaps / rate)
        at.append(chunk)
        now = float(chunk[-1])
    every = np.concatenate(at)
    return np.asarray(every[every < length])


def _gamma_function(value: float) -> float:
    from math import gamma

    return gamma(value)


def _lengths(
    tables: dict[str, Any], probabilities: Floats, second: float, size: int, generator: np.random.Generator
) -> tuple[list[int], list[int]]:
    starts = sorted(int(key) for key in tables)
    table = tables[str(max((s for s in starts if s <= second), default=starts[0]))]
    drawn = [np.interp(generator.random(size), probabilities, table[side]) for side in ("input", "output")]
    return drawn[0].round().astype(int).tolist(), drawn[1].round().astype(int).tolist()
