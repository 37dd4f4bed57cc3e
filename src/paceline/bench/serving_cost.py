"""What serving adds to an engine's steps, measured through a real server by a real client on the same machine.

An engine alone on its cores is faster than one that shares them with the server that streams its tokens and, in a load
test on one machine, with the client that reads them. Waves of requests of known batch sizes show by how much: each
wave's time per token is held against the same step on the executor alone, measured right beside it, since machines do
not keep one speed for minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp
import numpy as np
import numpy.typing as npt

from paceline.bench.bodies import PromptStyle, prepare
from paceline.bench.client import Reply, send
from paceline.bench.errors import BenchError
from paceline.bench.target import Target, discover, open_session
from paceline.sim.profile import Serving
from paceline.workload.records import Outcome
from paceline.workload.requests import TimedRequest, named_key

Floats = npt.NDArray[np.float64]
Alone = Callable[[int, int], float]
"""Seconds of a step on the executor alone: of so many decoding rows with so many tokens each, or of a prompt."""

WAVES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
PROMPT = 16
TOKENS = 32
_LONG = 64  # tokens of the prompt whose first token is timed
_ALONE = 12  # such prompts


@dataclass(frozen=True)
class Wave:
    """Requests that were sent together and decoded together."""

    rows: int
    served: float  # seconds a step
    alone: float  # the same step on the executor, with nobody else at work


async def serving_cost(
    url: str,
    decode_alone: Alone,
    prompt_alone: Callable[[int], float],
    loop: tuple[float, float],
    max_num_seqs: int,
    rounds: int = 3,
    progress: Callable[[str], None] = lambda _: None,
    waves_of: Sequence[int] = WAVES,
) -> Serving:
    """Waves of every size that the batch holds, in turns. `loop`: what the engine's loop adds by itself to a step and
    to each of its rows.

    BenchError where the server does not answer.
    """
    sizes = [size for size in waves_of if size <= max_num_seqs]
    waves: list[Wave] = []
    waits: list[float] = []
    async with open_session(120) as session:
        target = await discover(session, Target(url))
        await _wave(session, target, 1, "warm-up")
        for number in range(rounds):
            progress(f"round {number + 1} through the server: {', '.join(map(str, sizes))} requests at a time")
            waits += await _alone(session, target, number, prompt_alone)
            for size in sizes:
                before = decode_alone(size, PROMPT + TOKENS // 2)
                served = await _wave(session, target, size, f"{number} {size}")
                after = decode_alone(size, PROMPT + TOKENS // 2)
                waves.append(Wave(size, served, (before + after) / 2))
    return fit_serving(waves, waits, loop)


def fit_serving(waves: Sequence[Wave], waits: Sequence[float], loop: tuple[float, float]) -> Serving:
    """Least squares of the relative error, nothing below zero."""
    from scipy.optimize import nnls

    rows = np.array([wave.rows for wave in waves], np.float64)
    served = np.array([wave.served for wave in waves])
    alone = np.array([wave.alone for wave in waves]) + loop[0] + loop[1] * rows
    features = np.stack([np.ones_like(rows), rows], axis=1)
    (per_step, per_row), _ = nnls(features / served[:, None], np.maximum(served - alone, 0.0) / served)
    off = (alone + per_step + per_row * rows) / served - 1
    between = max(float(np.median(waits)) - per_step - per_row, 0.0)
    return Serving(
        per_step=float(per_step),
        per_row=float(per_row),
        entry_seconds=between / 2,
        exit_seconds=between / 2,
        error=float(np.abs(off).mean()),
        waves=[
            (int(size), float(np.median(alone[rows == size])), float(np.median(served[rows == size])))
            for size in np.unique(rows)
        ],
    )


async def _wave(session: aiohttp.ClientSession, target: Target, size: int, name: str) -> float:
    """Seconds of a step with so many rows, as their clients see it."""
    replies = await asyncio.gather(*(_ask(session, target, f"{name} {i}", PROMPT, TOKENS) for i in range(size)))
    # Requests arrive one after the other, over a few steps: those that came last decoded with all the others beside
    # them and with nobody's prompt in between.
    replies.sort(key=lambda reply: reply.first)
    late = replies[-max(size // 4, 1) :]
    return float(np.mean([(reply.last - reply.first) / (reply.output_tokens - 1) for reply in late]))


async def _alone(
    session: aiohttp.ClientSession, target: Target, number: int, prompt_alone: Callable[[int], float]
) -> list[float]:
    """What the time to the first token has beyond the step that makes it, with nothing else in the system."""
    step = prompt_alone(_LONG)
    replies = [await _ask(session, target, f"alone {number} {i}", _LONG, 1) for i in range(_ALONE)]
    return [reply.first - reply.sent - step for reply in replies]


async def _ask(session: aiohttp.ClientSession, target: Target, name: str, prompt: int, tokens: int) -> Reply:
    request = TimedRequest(name, 0.0, prompt, tokens, parts=((named_key(f"serving cost {name}"), prompt),))
    reply = await send(session, target, prepare(target, request, PromptStyle(), {"temperature": 0.0}))
    if reply.outcome is not Outcome.OK or reply.output_tokens != tokens:
        raise BenchError(f"{target.url}: a request of {prompt} + {tokens} tokens was not served: {reply.error}")
    return reply
