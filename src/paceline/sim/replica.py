"""One engine under a virtual clock: the scheduler itself, and an executor whose steps take modelled time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.discipline import Discipline
from paceline.core.plan import StepPlan, StepResult
from paceline.core.request import FinishReason, Sequence
from paceline.core.scheduler import Scheduler
from paceline.core.steady import Started, SteadyDecode
from paceline.errors import PacelineError, RequestError
from paceline.sim.executor import SimulatedExecutor
from paceline.sim.latency import MOST_AT_ONCE, FloatArray, StepShape, StepTimes
from paceline.sim.log import RunLog, Usage, without_numbers
from paceline.sim.prompts import SimulatedRequest, resumable
from paceline.sim.token_times import TokenTimes
from paceline.workload.records import Outcome

IDLE_WAIT = 0.02  # seconds after which an engine that could run nothing asks its scheduler again
MOST_WAITS = 1000  # in a row, after which only an arrival can change anything

Ended = Callable[[int, float], None]


class SimulationError(PacelineError):
    """The simulated system came to a state it cannot leave. The message says who waits, and why."""


def _counting(config: SchedulerConfig, discipline: Discipline) -> Discipline:
    """With a cache that only counts blocks, where nobody asks which they are."""
    moves = config.num_host_blocks > 0
    displaces = discipline.displacement.displace and hasattr(discipline.policy.queue(), "level")
    return discipline if discipline.cache != "radix" or moves or displaces else replace(discipline, cache="counted")


class Replica:
    """`submit` gives it a request at a time; `process` moves it past its next change, which is due at `next`.

    Changes are made in order of time by whoever owns the replica. Requests that arrive during a step wait for its end,
    as an engine's do. Decode steps that nothing interrupts are taken together, with the same outcome.
    """

    def __init__(
        self,
        index: int,
        config: SchedulerConfig,
        discipline: Discipline,
        times: StepTimes,
        log: RunLog,
        ended: Ended,
        *,
        block_bytes: float = 0.0,
        pcie_bandwidth: float = 32e9,
        disk_bandwidth: float = 3e9,
        fast: bool = True,
        shared: bool = True,
        watch: Callable[[Replica, StepPlan, float], None] | None = None,
    ) -> None:
        """`shared`: prompts may begin alike, or some displace others. `watch` sees every planned step and its start."""
        self.index = index
        self.scheduler = Scheduler(config, discipline if shared else _counting(config, discipline))
        self.executor = SimulatedExecutor(times, config.max_num_seqs, block_bytes, pcie_bandwidth, disk_bandwidth)
        self.log = log
        self.usage = Usage()
        self.clock = 0.0  # of the last step boundary
        self.next = math.inf  # when it changes next; inf: not before something arrives
        self.load = 0  # requests inside
        self.load_tokens = 0  # prompt and generated tokens of these requests, as asked for
        self.alive = True
        self._ended = ended
        self._watch = watch
        self._steady = SteadyDecode(self.scheduler, late=not shared)
        self._fast = fast and self._steady.possible and watch is None
        self._pending: list[SimulatedRequest] = []  # arrived, not yet seen by the scheduler
        self._inside: dict[int, SimulatedRequest] = {}
        self._tokens = TokenTimes(log, config.max_num_seqs)
        self._plan: StepPlan | None = None
        self._result: StepResult | None = None
        self._ends: FloatArray | None = None  # of the decode steps foreseen
        self._seconds: FloatArray | None = None  # how long each takes
        self._started: list[Started] | None = None  # by the step in flight, where that has no plan
        self._waits = 0

    # -- requests in and out ----------------------------------------------------------------------------------------

    def submit(self, request: SimulatedRequest, now: float) -> None:
        """A request arrives. `now` is not before anything processed so far."""
        self._inside[request.index] = request
        self.load += 1
        self.load_tokens += request.size
        self.log.replica[request.index] = self.index
        self._pending.append(request)
        if self.next == math.inf or (self._plan is None and self._ends is None and self._started is None):
            self.clock = max(self.clock, now)  # idle, or looking for something to do
            self.next = self.clock
        elif self._ends is not None and len(self._pending) == 1:
            self._cut(now)

    def _cut(self, now: float) -> None:
        """Of the steps foreseen, keep those that start before `now`."""
        assert self._ends is not None
        if self.clock >= now:
            self._ends, self.next = None, self.clock
            return
        kept = 1 + int(self._ends[:-1].searchsorted(now, "left"))
        self._ends = self._ends[:kept]
        self.next = float(self._ends[-1])

    def _leave(self, sequence: Sequence, now: float, outcome: Outcome) -> None:
        request = sequence.request
        assert isinstance(request, SimulatedRequest)
        index, log = request.index, self.log
        log.outcome[index] = outcome
        log.cached[index] = sequence.cached_tokens
        log.preemptions[index] = sequence.preemptions
        if sequence.first_scheduled is not None:
            log.started[index] = sequence.first_scheduled
        log.tokens[index] = sequence.tokens.size - sequence.prompt_length
        if outcome is not Outcome.OK or self._tokens.even or self.scheduler.discipline.together:
            log.last[index] = now  # the last token of a batch that ends together comes out with that end
        self._forget(request, now)

    def _forget(self, request: SimulatedRequest, now: float) -> None:
        del self._inside[request.index]
        self.load -= 1
        self.load_tokens -= request.size
        self._ended(request.index, now)

    # -- time -------------------------------------------------------------------------------------------------------

    def process(self) -> None:
        """Make the change that is due at `next`, and decide what comes after it."""
        now = self.next
        if self._ends is not None:
            self._take(self._ends)
        elif self._started is not None:
            self._finish(self._started, now)
        elif self._plan is not None:
            self._complete(now)
        self._decide(now)

    def _take(self, ends: FloatArray) -> None:
        """The decode steps foreseen are over."""
        assert self._seconds is not None
        self._ends = None
        steady, count, now = self._steady, ends.size, float(ends[-1])
        rows = steady.rows.size
        self._tokens.many(steady.rows, float(ends[0]), self._seconds[:count])
        self._note(now, rows, 0)
        self.usage.steps += count
        self.usage.fast_steps += count
        ended = steady.take(count, now)
        self.clock = now
        for sequence in ended:
            self._leave(sequence, now, Outcome.OK)

    def _finish(self, started: list[Started], now: float) -> None:
        """A step in which everybody else decoded is over."""
        self._started = None
        steady = self._steady
        self._tokens.one(steady.rows, started, now - self.clock, now)
        self._note(now, self.scheduler.num_running, self.scheduler.num_waiting)
        self.usage.steps += 1
        self.usage.fast_steps += 1
        ended = steady.finish(now)
        self.clock = now
        for sequence in ended:
            self._leave(sequence, now, Outcome.OK)

    def _note(self, now: float, running: int, waiting: int) -> None:
        scheduler = self.scheduler
        held = 1 - scheduler.kv.available / scheduler.config.num_blocks
        self.usage.note(now, now - self.clock, running, waiting, held, scheduler.totals.generation_tokens)

    def _complete(self, now: float) -> None:
        """The step in flight is over."""
        plan, result, scheduler = self._plan, self._result, self.scheduler
        assert plan is not None and result is not None
        self._plan = self._result = None
        self._note(now, scheduler.num_running, scheduler.num_waiting)
        self.usage.steps += 1
        self._tokens.any(plan.rows[plan.samples].astype(np.intp), now)
        events = scheduler.complete(result, now)
        self.clock = now
        for sequence in events.finished:
            self._leave(sequence, now, Outcome.OK)

    def _decide(self, now: float) -> None:
        """At a step boundary: take requests in, and start the next step."""
        if self._pending:
            self._admit(now)
        scheduler = self.scheduler
        if not scheduler.has_work():
            self.next = math.inf
            return
        if self._fast:
            if count := self._steady.steps():
                self._foresee(count, now)
                return
            if (started := self._steady.begin(now)) is not None:
                self._begin(started, now)
                return
        self._schedule(now)

    def _foresee(self, count: int, now: float) -> None:
        """Nothing but an arrival changes the rows for so many steps."""
        rows = self._steady.rows.size
        seconds = self.executor.times.decode_run(rows, self._steady.context + rows, min(count, MOST_AT_ONCE))
        ends = seconds.copy()
        ends[0] += now
        self._seconds, self._ends = seconds, np.add.accumulate(ends)
        self.next = float(self._ends[-1])

    def _begin(self, started: list[Started], now: float) -> None:
        """Everybody decodes in the step that starts now, and these start."""
        rows = tokens = sampled = self._steady.rows.size
        context, pairs = self._steady.context, 0.0
        for row, start, count, samples in started:
            self._enter(row)
            tokens += count
            sampled += samples
            if count > 1:
                pairs += count * (start + 0.5 * count)
            else:
                rows, context = rows + 1, context + start + 1
        self._waits = 0
        self._started = started
        self.clock = now
        self.next = now + self.executor.times.seconds(StepShape(tokens, sampled, pairs, rows, float(context)))

    def _admit(self, now: float) -> None:
        for request in self._pending:
            request.arrival = now  # the engine's clock starts when it sees the request
            try:
                self.scheduler.add(request, now)
            except RequestError as error:
                refused = error.status in (429, 503)
                self.log.outcome[request.index] = Outcome.REFUSED if refused else Outcome.ERROR
                self.log.last[request.index] = now
                self.log.say(without_numbers(str(error)))
                self._forget(request, now)
        self._pending = []

    def _schedule(self, now: float) -> None:
        scheduler = self.scheduler
        self._tokens.write(self._steady.rows, self.clock)
        self._steady.settle()
        plan = None
        while plan is None:
            plan = scheduler.schedule(now)
            ended = scheduler.take_ended()
            for sequence in ended:
                expired = sequence.finish_reason is FinishReason.EXPIRED
                if expired:
                    self.log.say(without_numbers(sequence.finish_detail or "expired"))
                self._leave(sequence, now, Outcome.INCOMPLETE if expired else Outcome.OK)
            if plan is None and not ended:
                self._wait(now)
                return
            if plan is None and not scheduler.has_work():
                self.next = math.inf
                return
        self._waits = 0
        for entered in plan.entered:
            self._enter(entered.row)
        if self._watch is not None:
            self._watch(self, plan, now)
        self._plan, self._result = plan, self.executor.execute(plan)
        self.clock = now
        self.next = now + self._result.seconds

    def _enter(self, row: int) -> None:
        """A sequence takes a row: what it is going to sample is written ahead, so that no step has to."""
        batch = self.scheduler.batch
        self._tokens.requests[row] = batch.occupant[row].request.index
        if self._fast:
            token = self.executor.token(batch.occupant[row].seed)
            batch.tokens[row, batch.length[row] : batch.max_length[row]] = token

    def _wait(self, now: float) -> None:
        """Nothing can run: ask again as an engine does, when the scheduler says so or after a short while."""
        step = self.scheduler.step
        wake = step.wake if step is not None else None
        self._waits = 0 if wake is not None and wake > now else self._waits + 1
        soon = now + IDLE_WAIT
        self.next = math.inf if self._waits >= MOST_WAITS else soon if wake is None else min(max(wake, now), soon)

    # -- faults -----------------------------------------------------------------------------------------------------

    def stuck(self) -> str | None:
        """Who waits for something that will not come; None: nobody."""
        if not self.alive or self.next < math.inf or not self.scheduler.has_work():
            return None
        name, why = next(iter(self.scheduler.why().items()), ("", "it is not known why"))
        return f"replica {self.index}: {self.scheduler.num_waiting} requests wait and nothing can run; {name}: {why}"

    def slow_down(self, factor: float, now: float) -> None:
        """Steps that start from `now` on take `factor` times as long."""
        if self._ends is not None:
            self._cut(now)
        self.executor.times = self.executor.times.scaled(factor)

    def die(self, now: float) -> list[SimulatedRequest]:
        """It stops at once. Its requests with the tokens they have so far, to be resumed elsewhere."""
        if self._ends is not None and (done := int(self._ends.searchsorted(now, "right"))):
            self._take(self._ends[:done])
        self._tokens.write(self._steady.rows, self.clock)
        self._steady.settle()
        self.alive = False
        self.next = math.inf
        self._plan = self._result = self._ends = self._started = None
        requests = []
        for request in self._inside.values():
            live = self.scheduler.sequences(request.id)
            requests.append(resumable(request, live[0], self.scheduler) if live else request)
        self._inside, self._pending = {}, []
        self.load = self.load_tokens = 0
        return requests
