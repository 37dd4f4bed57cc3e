"""N replicas behind a router, on one virtual clock."""

from __future__ import annotations

import gc
import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from paceline.core.config import SchedulerConfig
from paceline.core.discipline import Discipline
from paceline.errors import ConfigError
from paceline.sim.latency import StepTimes
from paceline.sim.log import RunLog, Usage
from paceline.sim.prompts import Prompts, SimulatedRequest
from paceline.sim.replica import Replica, SimulationError
from paceline.sim.router import RoundRobin, Router
from paceline.workload.packed import PackedRequests
from paceline.workload.records import Outcome, Records
from paceline.workload.requests import TimedRequest, Workload

DIES, SLOWS, RETURNS = "dies", "slows", "returns"


@dataclass(frozen=True)
class Fault:
    """Something that befalls a replica: it `dies` (its requests go elsewhere and go on with the tokens they have), it
    `returns` empty, or it `slows` by a factor."""

    at: float  # seconds
    replica: int
    kind: str = DIES
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in (DIES, SLOWS, RETURNS):
            raise ConfigError("fault", self.kind, f"one of {DIES}, {SLOWS}, {RETURNS}")
        if not (0 <= self.at < math.inf and self.replica >= 0 and 0 < self.factor < math.inf):
            raise ConfigError("fault", self, "at a time from 0 on, of a replica that is there, by a factor above 0")


@dataclass(frozen=True)
class ReplicaSpec:
    """How every replica of a cluster is made."""

    config: SchedulerConfig
    discipline: Discipline
    times: StepTimes
    block_bytes: float = 0.0  # of one KV block on one device: what swapping it moves
    pcie_bandwidth: float = 32e9  # bytes/s
    disk_bandwidth: float = 3e9  # bytes/s that one device gets
    entry_seconds: float = 0.0  # from a request's arrival until the engine sees it: HTTP, tokenising
    exit_seconds: float = 0.0  # from when a token is made until its client has it: text, HTTP


@dataclass
class Run:
    """What came of a simulation."""

    log: RunLog
    records: Records
    usages: list[Usage]  # by replica
    spec: ReplicaSpec
    replicas: int
    end: float  # seconds
    counters: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def usage(self) -> Usage:
        """Of all replicas together."""
        total = Usage()
        for usage in self.usages:
            total.merge(usage)
        return total

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that the cache had."""
        asked = self.counters["prefix_query_tokens"]
        return self.counters["prefix_hit_tokens"] / asked if asked else 0.0

    @property
    def preemptions_per_thousand(self) -> float:
        """Preemptions per 1,000 requests that ended."""
        return 1000 * self.counters["preemptions"] / max(self.counters["finished"], 1)


def simulate(
    workload: Workload,
    spec: ReplicaSpec,
    replicas: int = 1,
    router: Router | None = None,
    faults: Sequence[Fault] = (),
    *,
    fast: bool = True,
    watch: object = None,
) -> Run:
    """Run a workload to its end. Seeds are the router's and the workload's own: the same run in any process.

    `watch(replica, plan, start)` sees every step, which are then all taken one by one; so they are with `fast=False`.
    Raises SimulationError when requests wait and nothing can ever run.
    """
    if replicas < 1:
        raise ConfigError("--replicas", replicas, "a whole number of at least 1")
    for fault in faults:
        if fault.replica >= replicas:
            raise ConfigError("fault", fault.replica, f"of a replica from 0 to {replicas - 1}")
    with _uncollected():
        return _Cluster(workload, spec, replicas, router or RoundRobin(), faults, fast, watch).run()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cycles, which a run does not make: a look costs more the more requests there are."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Cluster:
    def __init__(
        self,
        workload: Workload,
        spec: ReplicaSpec,
        replicas: int,
        router: Router,
        faults: Sequence[Fault],
        fast: bool,
        watch: object,
    ) -> None:
        self.workload, self.spec, self.router = workload, spec, router
        self.fast, self.watch = fast, watch
        self.log = RunLog(len(workload))
        self.due = workload.times()
        self.shared = _shared(workload.requests)
        self.prompts = Prompts()
        self.replicas = [self._replica(index) for index in range(replicas)]
        self.retired: list[Replica] = []  # those that died, for their counters
        self.alive = list(self.replicas)
        self.queue: list[tuple[float, int]] = []  # (next, index); stale where the replica says another time
        self.faults = sorted(faults, key=lambda fault: (fault.at, fault.replica))
        self.parked: list[SimulatedRequest] = []  # arrived while no replica lived
        self.released: list[tuple[float, int]] = []  # turns whose predecessor has ended: (due, index)
        self.followers = _followers(workload.requests)

    def _replica(self, index: int) -> Replica:
        spec = self.spec
        return Replica(
            index,
            spec.config,
            spec.discipline,
            spec.times,
            self.log,
            self._ended,
            block_bytes=spec.block_bytes,
            pcie_bandwidth=spec.pcie_bandwidth,
            disk_bandwidth=spec.disk_bandwidth,
            fast=self.fast,
            shared=self.shared,
            watch=self.watch,  # type: ignore[arg-type]
        )

    def run(self) -> Run:
        waiting, everyone = self.followers.waiting, range(len(self.workload))
        first = [index for index in everyone if index not in waiting] if waiting else everyone
        position, faults, at = 0, self.faults, 0
        while True:
            due = self.due.item(first[position]) if position < len(first) else math.inf
            turn = self.released[0][0] if self.released else math.inf
            fault = faults[at].at if at < len(faults) else math.inf
            now = min(due, turn, fault)
            if now == math.inf and not self.queue:
                break
            if self._process_until(now):
                continue  # a conversation's next turn may be due before
            if now == math.inf:
                break
            if fault <= now:
                self._befall(faults[at])
                at += 1
            elif due <= turn:
                self._arrive(first[position], now)
                position += 1
            else:
                self._arrive(heapq.heappop(self.released)[1], now)
        self._check_end()
        return self._result()

    def _process_until(self, limit: float) -> bool:
        """Changes due before `limit`. True: stopped early because a turn was released that may be due before it."""
        queue, replicas = self.queue, self.replicas
        while queue and queue[0][0] < limit:
            time, index = heapq.heappop(queue)
            replica = replicas[index]
            if replica.next != time:
                continue
            replica.process()
            if replica.next < math.inf:
                heapq.heappush(queue, (replica.next, index))
            if self.released and self.released[0][0] < limit:
                return True
        return False

    def _arrive(self, index: int, now: float) -> None:
        self.log.scheduled[index] = now
        timed = self.workload.requests[index]
        request = self.prompts.request(timed, index)
        request.arrival = now
        self._route(request, timed, now + self.spec.entry_seconds)

    def _route(self, request: SimulatedRequest, timed: TimedRequest, now: float) -> None:
        alive = self.alive
        if not alive:
            self.parked.append(request)
            return
        replica = alive[self.router.choose(timed, alive) if len(alive) > 1 else 0]
        before = replica.next
        replica.submit(request, now)
        if replica.next != before:
            heapq.heappush(self.queue, (replica.next, replica.index))

    def _ended(self, index: int, now: float) -> None:
        follower = self.followers.next.get(index)
        if follower is not None:
            request = self.workload.requests[follower]
            ended = now + self.spec.exit_seconds
            heapq.heappush(self.released, (max(request.arrival, ended + (request.after or 0.0)), follower))

    def _befall(self, fault: Fault) -> None:
        replica = self.replicas[fault.replica]
        if fault.kind == SLOWS and replica.alive:
            replica.slow_down(fault.factor, fault.at)
            if replica.next < math.inf:
                heapq.heappush(self.queue, (replica.next, replica.index))
        elif fault.kind == DIES and replica.alive:
            orphans = replica.die(fault.at)
            self.retired.append(replica)
            self.alive = [one for one in self.replicas if one.alive]
            for request in orphans:
                self._route(request, self.workload.requests[request.index], fault.at)
        elif fault.kind == RETURNS and not replica.alive:
            self.replicas[fault.replica] = self._replica(fault.replica)
            self.alive = [one for one in self.replicas if one.alive]
            parked, self.parked = self.parked, []
            for request in parked:
                self._route(request, self.workload.requests[request.index], fault.at)

    def _check_end(self) -> None:
        for replica in self.replicas:
            if (problem := replica.stuck()) is not None:
                raise SimulationError(problem)

    def _result(self) -> Run:
        requests, log = self.workload.requests, self.log
        names, tenant = _tenants(requests)
        log.messages |= {"no replica was left alive": len(self.parked)} if self.parked else {}
        records = log.records(self.workload.lengths()[0], tenant, names, self.spec.exit_seconds)
        everyone = [*self.retired, *(one for one in self.replicas if one.alive)]
        counters: dict[str, int] = defaultdict(int)
        for replica in everyone:
            for name, value in vars(replica.scheduler.totals).items():
                counters[name] += value
        notes = [f"{count} requests: {message}" for message, count in log.messages.items()]
        never = int(np.isnan(log.scheduled).sum())
        if never:
            notes.append(f"{never} turns were never due: the turn before them was refused or cut off")
        end = float(np.nanmax(log.last)) if (log.outcome == Outcome.OK).any() else 0.0
        usages = [replica.usage for replica in everyone]
        return Run(log, records, usages, self.spec, len(self.replicas), end, dict(counters), notes)


@dataclass
class _Followers:
    next: dict[int, int]  # index of a turn -> index of the one after it
    waiting: set[int]  # indexes of turns that wait for another


def _followers(requests: Sequence[TimedRequest]) -> _Followers:
    """Which turns wait for which."""
    if isinstance(requests, PackedRequests):
        return _Followers({}, set())
    latest: dict[str, int] = {}
    following: dict[int, int] = {}
    for index, request in enumerate(requests):
        if not request.session:
            continue
        if request.after is not None and request.session in latest:
            following[latest[request.session]] = index
        latest[request.session] = index
    return _Followers(following, set(following.values()))


def _tenants(requests: Sequence[TimedRequest]) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Names, and for every request which of them."""
    if isinstance(requests, PackedRequests):
        return [""], np.zeros(len(requests), np.int32)
    number: dict[str, int] = {}
    index = np.array([number.setdefault(request.tenant, len(number)) for request in requests], np.int32)
    return list(number) or [""], index


def _shared(requests: Sequence[TimedRequest]) -> bool:
    """May two prompts begin alike, or some requests displace others?"""
    if isinstance(requests, PackedRequests):
        return not requests.distinct
    return _alike(requests) or len({one.priority for one in requests}) > 1


def _alike(requests: Sequence[TimedRequest]) -> bool:
    seen: set[int] = set()
    for request in requests:
        if not request.parts or request.parts[0][0] in seen:
            return True
        seen.add(request.parts[0][0])
    return False
