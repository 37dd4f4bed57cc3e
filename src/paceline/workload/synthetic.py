"""Workloads made to measure: length mixes, shared prefixes, conversations, tenants.

Every prompt is distinct unless told otherwise: a small set of prompts used again and again warms the prefix cache and
makes any server look better than it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.workload.arrivals import AllAtOnce, Arrivals, times
from paceline.workload.packed import PackedRequests, pack
from paceline.workload.requests import TimedRequest, Workload, WorkloadError, named_key


@dataclass(frozen=True)
class Lengths:
    """Token counts: `mean` exactly, or spread from low to high.

    kind `fixed`; `uniform` over mean x (1 +- spread); `lognormal` with that coefficient of variation.
    """

    mean: int
    spread: float = 0.0
    kind: str = "uniform"
    maximum: int = 1 << 20

    def __post_init__(self) -> None:
        if self.mean < 1 or self.maximum < 1:
            raise WorkloadError(f"a length of {self.mean} tokens (at most {self.maximum}): it must be at least 1")
        if self.kind not in ("fixed", "uniform", "lognormal"):
            raise WorkloadError(f"length distribution {self.kind!r}: it must be fixed, uniform or lognormal")
        if self.spread < 0 or (self.kind == "uniform" and self.spread >= 1):
            raise WorkloadError(f"length spread {self.spread}: it must be from 0 to below 1 (lognormal: 0 or more)")

    def draw(self, generator: np.random.Generator, size: int) -> list[int]:
        if self.spread == 0 or self.kind == "fixed":
            return [min(self.mean, self.maximum)] * size
        if self.kind == "uniform":
            low, high = self.mean * (1 - self.spread), self.mean * (1 + self.spread)
            drawn = generator.integers(max(1, round(low)), max(1, round(high)) + 1, size).astype(np.float64)
        else:
            sigma = np.sqrt(np.log1p(self.spread**2))
            drawn = generator.lognormal(np.log(self.mean) - sigma**2 / 2, sigma, size).round()
        return [int(value) for value in np.clip(drawn, 1, self.maximum)]


@dataclass(frozen=True)
class Kind:
    """One kind of request in a mix."""

    input: Lengths
    output: Lengths
    weight: float = 1.0
    tenant: str = ""
    priority: int = 0
    prefix: int = 0
    """Tokens of a prompt's start that it shares with others, on top of `input`."""
    prefixes: int = 1
    """How many different shared starts there are."""
    prefix_share: float = 1.0
    """Share of the requests that have one."""
    turns: int = 1
    """Requests of one conversation: each repeats the conversation so far and adds `input` tokens."""
    think: float = 0.0
    """Mean seconds between an answer and the next turn, exponential."""

    def __post_init__(self) -> None:
        if not self.weight > 0 or self.prefix < 0 or self.prefixes < 1 or self.turns < 1 or self.think < 0:
            raise WorkloadError(
                f"weight {self.weight}, prefix {self.prefix}, prefixes {self.prefixes}, turns {self.turns}, "
                f"think {self.think}: weight above 0, prefixes and turns at least 1, the others 0 or more"
            )
        if not 0 <= self.prefix_share <= 1:
            raise WorkloadError(f"prefix share {self.prefix_share}: it must be from 0 to 1")


SHORT_MEDIUM_LONG = (
    Kind(Lengths(50, 0.8), Lengths(50, 0.8), weight=0.4),
    Kind(Lengths(300, 0.6), Lengths(150, 0.6), weight=0.4),
    Kind(Lengths(1200, 0.5), Lengths(300, 0.5), weight=0.2),
)
"""The mix that practitioners call real: 40 % below 100 tokens, 40 % from 100 to 500, 20 % above 500."""


@dataclass(frozen=True)
class Synthetic:
    """A generator of requests."""

    kinds: tuple[Kind, ...] = (Kind(Lengths(256), Lengths(128)),)
    arrivals: Arrivals = field(default_factory=AllAtOnce)
    name: str = "synthetic"

    def requests(self, count: int, seed: int = 0) -> Iterator[TimedRequest]:
        """Conversations, one after the other: memory stays flat but for the turns of the one at hand.

        Without conversations the requests come in order of arrival; with them, `workload` sorts.
        """
        generator = np.random.default_rng((seed, 1))
        weights = np.array([kind.weight for kind in self.kinds])
        weights = weights / weights.sum()
        made = 0
        for chunk in self.arrivals.chunks(seed):
            chosen = generator.choice(len(self.kinds), chunk.size, p=weights).tolist()
            for at, which in zip(chunk.tolist(), chosen, strict=True):
                if made >= count:
                    return
                for request in self._conversation(made, at, self.kinds[which], which, seed, generator):
                    if made < count:
                        yield request
                        made += 1

    def workload(self, count: int, seed: int = 0) -> Workload:
        """`count` requests in order of arrival."""
        if count < 1:
            raise WorkloadError(f"{count} requests: there must be at least 1")
        made = pack(self.requests(count, seed))
        if any(kind.turns > 1 for kind in self.kinds):
            made = sorted(made, key=lambda request: request.arrival)
        workload = Workload(made, self.name, self.arrivals.describe(), source="generated")
        if any(kind.turns > 1 for kind in self.kinds):
            workload.notes.append(
                "conversations: each next turn is due after the answer before it; its prompt repeats generated tokens "
                "in place of the server's own answer, so at most the questions are found in a prefix cache"
            )
        return workload

    def intended_share(self, workload: Workload) -> float:
        """Share of the prompt tokens that an endless prefix cache would already hold."""
        return shared_tokens(workload) / max(sum(request.prompt_len for request in workload.requests), 1)

    def _conversation(
        self, number: int, at: float, kind: Kind, which: int, seed: int, generator: np.random.Generator
    ) -> Iterator[TimedRequest]:
        lengths_in, lengths_out = kind.input.draw(generator, kind.turns), kind.output.draw(generator, kind.turns)
        parts: list[tuple[int, int]] = []
        if kind.prefix and (kind.prefix_share == 1 or generator.random() < kind.prefix_share):
            start = 0 if kind.prefixes == 1 else int(generator.integers(kind.prefixes))
            parts.append((named_key(f"prefix {which} {start}"), kind.prefix))
        for turn in range(kind.turns):
            name = str(number + turn)
            parts.append((-1 - 2 * (number + turn), lengths_in[turn]))
            reply = -2 - 2 * (number + turn)
            yield TimedRequest(
                name,
                at,
                sum(length for _, length in parts),
                lengths_out[turn],
                parts=tuple(parts),
                tenant=kind.tenant,
                session=str(number) if kind.turns > 1 else "",
                turn=turn,
                after=float(generator.exponential(kind.think)) if turn and kind.think else (0.0 if turn else None),
                priority=kind.priority,
                reply_key=reply,
            )
            parts.append((reply, lengths_out[turn]))


def with_arrivals(workload: Workload, arrivals: Arrivals, seed: int = 0) -> Workload:
    """The workload's requests at the times of another process; those a trace of times has no time for are counted.

    Turns that wait for the turn before them come with their conversation: each conversation gets one time.
    """
    if isinstance(workload.requests, PackedRequests):
        return _counted(workload.with_times(times(arrivals, len(workload), seed), arrivals.describe()), len(workload))
    firsts = sum(request.after is None for request in workload.requests)
    at = iter(times(arrivals, firsts, seed).tolist())
    began: dict[str, float] = {}
    moved: list[TimedRequest] = []
    for request in workload.requests:
        time = next(at, None) if request.after is None else began.get(request.session)
        if time is not None:
            began[request.session] = time
            moved.append(replace(request, arrival=time))
    moved.sort(key=lambda request: request.arrival)
    return _counted(replace(workload, requests=moved, arrivals=arrivals.describe(), timed=True), len(workload))


def _counted(timed: Workload, before: int) -> Workload:
    """With a word on those of `before` that have no time."""
    if len(timed) < before:
        timed.skipped = {**timed.skipped, "no arrival time left": before - len(timed)}
    return timed


def shared_tokens(workload: Workload) -> int:
    """Prompt tokens that an endless prefix cache would hold when each request arrives, by its parts."""
    seen: set[int] = set()
    total = 0
    for request in workload.requests:
        path, hit = 0, True
        for key, length in request.parts:
            path = hash((path, key, length))
            if hit and path in seen:
                total += length
            else:
                hit = False
                seen.add(path)
    return total
