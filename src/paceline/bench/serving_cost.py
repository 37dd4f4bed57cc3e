"""What serving adds to an engine's steps, measured through a real server by a real client on the same machine.

An engine alone on its cores is faster than one that shares them with the server that streams its tokens and, in a load
test on one machine, with the client that reads them. Waves of requests of known batch sizes show by how much: each
wave's time per token is held against the same step on the executor alone, measured right beside it, since machines do
not keep one speed for minutes. What a request costs as it comes and goes shows in streams that go on meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
import numpy as np
import numpy.typing as npt

from paceline.bench.bodies import PromptStyle, prepare
from paceline.bench.bystanders import Bystanders, Patience
from paceline.bench.client import Reply, send
from paceline.bench.errors import BenchError
from paceline.bench.target import Target, discover, open_session
from paceline.sim.profile import Serving
from paceline.workload.records import Outcome
from paceline.workload.requests import TimedRequest, named_key

Floats = npt.NDArray[np.float64]
Alone = Callable[[int, int, int], float]
"""Seconds of a step on the executor alone: (decoding rows, tokens before each, tokens of a prompt beside them)."""

WAVES = (1, 2, 4, 8, 16, 32, 64)
PROMPT = 16
TOKENS = 32
_LONG = 64  # tokens of the prompt whose first token is timed with nothing else in the system
_ALONE = 12  # such prompts
_STREAMS = 4  # that decode while others come and go
_STREAMED = 160  # tokens of each
_APART = (3.0, 7.0)  # steps between those that come
_SAME = 2e-3  # seconds within which tokens of one step come to their clients
_STALL = 1.6  # times what is usual, from which on a step was held up by something else


@dataclass(frozen=True)
class Wave:
    """Requests that were sent together and decoded together."""

    rows: int
    served: float  # seconds a step
    alone: float  # the same step on the executor, with nobody else at work


@dataclass(frozen=True)
class Visit:
    """A request that came while others decoded, in seconds."""

    wait: float
    """From when it was due until its client had its first token, without its own step and what was left of the one
    before."""
    longer: float
    """By which these two steps together were longer than two decode steps, and than its prompt makes them."""


@dataclass
class Round:
    """What is measured through a server, once or several times."""

    waves: list[Wave] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)

    def add(self, other: Round) -> None:
        self.waves += other.waves
        self.waits += other.waits
        self.visits += other.visits


async def serving_cost(
    url: str,
    alone: Alone,
    loop: tuple[float, float],
    max_num_seqs: int,
    rounds: int = 4,
    progress: Callable[[str], None] = lambda _: None,
    waves_of: Sequence[int] = WAVES,
    kv_tokens: int = 0,
    patience: Patience | None = None,
) -> Serving:
    """Waves of every size that the batch holds, in turns. `loop`: what the engine's loop adds by itself to a step and
    to each of its rows. `kv_tokens` that the server has room for: so many are written before anything is timed, since
    the first to use a page of memory waits for the system to hand it out. `patience` with others on the machine:
    rounds that they disturbed are done again.

    BenchError where the server does not answer.
    """
    sizes = [size for size in waves_of if size <= max_num_seqs]
    patience, kept = patience or Patience(0, 0.0), Round()
    async with open_session(120) as session:
        target = await discover(session, Target(url))
        for number in range(1 + kv_tokens // (sizes[-1] * (PROMPT + TOKENS))):
            await _wave(session, target, sizes[-1], f"warm-up {number}")
        done = 0
        for number in itertools.count():  # prompts are named by it, and the server must know none of them
            progress(f"round {done + 1} through the server: {', '.join(map(str, sizes))} requests at a time")
            bystanders = Bystanders()
            found = await _round(session, target, number, sizes, alone, beside=max_num_seqs > _STREAMS)
            if patience.again(bystanders.seen()):
                continue
            kept.add(found)
            done += 1
            if done >= rounds:
                break
    return fit_serving(kept.waves, kept.waits, loop, kept.visits)


async def _round(
    session: aiohttp.ClientSession, target: Target, number: int, sizes: Sequence[int], alone: Alone, beside: bool
) -> Round:
    found = Round()
    for size in sizes:
        before = alone(size, PROMPT + TOKENS // 2, 0)
        served = await _wave(session, target, size, f"{number} {size}")
        after = alone(size, PROMPT + TOKENS // 2, 0)
        if not math.isnan(served):
            found.waves.append(Wave(size, served, (before + after) / 2))
    if beside:
        found.visits += await _visits(session, target, number, alone)
    else:
        found.waits += await _alone(session, target, number, alone)
    return found


def fit_serving(
    waves: Sequence[Wave], waits: Sequence[float], loop: tuple[float, float], visits: Sequence[Visit] = ()
) -> Serving:
    """Least squares of the relative error, nothing below zero. Without visits, `waits` say what is beyond the step of
    a first token."""
    from scipy.optimize import nnls

    rows = np.array([wave.rows for wave in waves], np.float64)
    served = np.array([wave.served for wave in waves])
    alone = np.array([wave.alone for wave in waves]) + loop[0] + loop[1] * rows
    features = np.stack([np.ones_like(rows), rows], axis=1)
    (per_step, per_row), _ = nnls(features / served[:, None], np.maximum(served - alone, 0.0) / served)
    off = (alone + per_step + per_row * rows) / served - 1
    if visits:
        between = float(np.mean([visit.wait for visit in visits]))
        per_request = float(np.mean([visit.longer for visit in visits])) - per_row - loop[1]
    else:
        between, per_request = float(np.median(waits)) - per_step - per_row, 0.0
    return Serving(
        per_step=float(per_step),
        per_row=float(per_row),
        entry_seconds=max(between, 0.0) / 2,
        exit_seconds=max(between, 0.0) / 2,
        error=float(np.abs(off).mean()),
        waves=[
            (int(size), float(np.median(alone[rows == size])), float(np.median(served[rows == size])))
            for size in np.unique(rows)
        ],
        per_request=float(max(per_request, 0.0)),
    )


async def _wave(session: aiohttp.ClientSession, target: Target, size: int, name: str) -> float:
    """Seconds of a step with so many rows, as their clients see it."""
    replies = await asyncio.gather(*(_ask(session, target, f"{name} {i}", PROMPT, TOKENS) for i in range(size)))
    return together(replies)


def together(replies: Sequence[Reply]) -> float:
    """Seconds a token while all of them decode and nobody's prompt is in between: they arrive one after the other, over
    a few steps, and end so. NaN where they never were together."""
    begin, end = max(reply.first for reply in replies), min(reply.last for reply in replies)
    took = []
    for reply in replies:
        there = reply.first + np.cumsum([0.0, *reply.gaps])
        inside = there[(there >= begin - _SAME) & (there <= end + _SAME)]
        if inside.size > 1:
            tokens = (inside.size - 1) * reply.output_tokens / there.size  # several may come in one piece
            took.append((inside[-1] - inside[0]) / tokens)
    return float(np.mean(took)) if took else math.nan


async def _alone(session: aiohttp.ClientSession, target: Target, number: int, alone: Alone) -> list[float]:
    """What the time to the first token has beyond the step that makes it, with nothing else in the system."""
    step = alone(0, 0, _LONG)
    replies = [await _ask(session, target, f"alone {number} {i}", _LONG, 1) for i in range(_ALONE)]
    return [reply.first - reply.sent - step for reply in replies]


async def _visits(session: aiohttp.ClientSession, target: Target, number: int, alone: Alone) -> list[Visit]:
    """Requests of one token that come while streams go on, each at some moment of a step."""
    longest = target.max_model_len or PROMPT + _STREAMED
    streamed = min(_STREAMED, longest - PROMPT)
    apart = np.random.default_rng(number)

    def steps() -> tuple[float, float]:
        context = PROMPT + streamed // 2
        return alone(_STREAMS, context, 0), alone(_STREAMS, context, PROMPT)

    before = steps()
    names = [f"stream {number} {i}" for i in range(_STREAMS)]
    streams = [asyncio.create_task(_ask(session, target, name, PROMPT, streamed)) for name in names]
    came: list[tuple[float, float]] = []
    await asyncio.sleep(10 * before[0])
    while not streams[0].done():
        due = time.perf_counter() + float(apart.uniform(*_APART)) * before[0]
        await asyncio.sleep(due - time.perf_counter())
        came.append((due, (await _ask(session, target, f"visit {number} {len(came)}", PROMPT, 1)).first))
    stream, *_ = await asyncio.gather(*streams)
    decode, own = np.mean([before, steps()], axis=0)
    return visits_seen(stream.first + np.cumsum([0.0, *stream.gaps]), came, float(own - decode))


def visits_seen(ends: Floats, came: Sequence[tuple[float, float]], prompt: float) -> list[Visit]:
    """Of requests (when due, when their first token was there), beside a stream whose tokens were there at `ends`, one
    a step. `prompt`: seconds that a step is longer for the prompt of one of them."""
    usual = float(np.median(np.diff(ends)))
    found = []
    for due, first in came:
        own = int(np.abs(ends - first).argmin())
        if not 2 <= own < ends.size - 1:  # it came as the stream began or ended
            continue
        rest, step = ends[own - 1] - ends[own - 2], ends[own] - ends[own - 1]
        if rest > _STALL * usual + prompt or step > _STALL * (usual + prompt):
            continue
        # It came at any moment of the step before its own, so half of that was left on average.
        found.append(Visit(float(ends[own - 1] - rest / 2 - due), float(rest + step - 2 * usual - prompt)))
    return found


async def _ask(session: aiohttp.ClientSession, target: Target, name: str, prompt: int, tokens: int) -> Reply:
    request = TimedRequest(name, 0.0, prompt, tokens, parts=((named_key(f"serving cost {name}"), prompt),))
    reply = await send(session, target, prepare(target, request, PromptStyle(), {"temperature": 0.0}))
    if reply.outcome is not Outcome.OK or reply.output_tokens != tokens:
        raise BenchError(f"{target.url}: a request of {prompt} + {tokens} tokens was not served: {reply.error}")
    return reply
