"""Between the door and the order: who may come in, who waits outside the order, and whose time is up."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.batch import Batch
from paceline.core.line import Line
from paceline.core.orders import Order
from paceline.core.queue_limits import QueueLimits
from paceline.core.quota_gate import QuotaGate
from paceline.core.quotas import Quotas
from paceline.core.request import Request, RowArray, Sequence, SequenceState
from paceline.core.step import Step
from paceline.core.time_limits import TimeLimits
from paceline.core.visit import Stage, Visit


class Entrance:
    """Keeps count of everybody inside: queues and their rates, time limits, quotas.

    A scheduler tells it of every request that comes, starts and ends, and of each step before and after it is decided.
    It reads no clock: `now` is the latest time it was told.
    """

    def __init__(self, limits: QueueLimits, waiting: Order, batch: Batch) -> None:
        self.limits = limits
        self.times = TimeLimits()
        self.queue = Line()  # requests in the order that have not started
        self.inside = Line()  # all requests; "served" is finished
        self.gate: QuotaGate | None = None
        self.now = 0.0
        self._waiting, self._batch = waiting, batch
        self._tenants: dict[int, Line] = {}  # requests of a tenant that have not started, those over quota included
        self._visits: dict[str, Visit] = {}  # by request id

    # -- the door ---------------------------------------------------------------------------------------------------

    def check(self, request: Request, tenant: int, now: float) -> None:
        """RequestError for a request that may not come in. `tenant`: its index, -1: not seen before."""
        self.now = now
        prompt = int(request.prompt.size)
        if self.gate is not None:
            self.gate.check(request.tenant, prompt)
        if request.resumed is not None:
            return  # it was let in by an engine that died
        refusal = self.limits.refuse(self.queue, prompt, now)
        if refusal is None and (line := self._tenants.get(tenant)) is not None:
            refusal = self.limits.refuse_tenant(line, request.tenant, prompt, now)
        if refusal is not None:
            raise refusal

    def retry_after(self, now: float) -> float | None:
        """Seconds until one of those inside will have finished, at the rate of late; None: not known."""
        return self.inside.seconds_for(now, 1, 0)

    def enter(self, sequences: list[Sequence], queued: list[Sequence], now: float) -> None:
        """A request comes in with all its sequences; those `queued` can run when their turn comes."""
        self.now = now
        visit = Visit(sequences[0].tenant, queued)
        self._visits[visit.request_id] = visit
        visit.limits = self.times.add(sequences, now)
        self.inside.join(now, visit.prompt)
        if self.limits.per_tenant:
            self._tenants.setdefault(visit.tenant, Line()).join(now, visit.prompt)
        if self.gate is not None:
            self.gate.enter(visit, sequences[0].request.tenant, now)
            return
        for sequence in queued:
            self._waiting.add(sequence)
        self._joined(visit)

    def _joined(self, visit: Visit) -> None:
        self.queue.join(self.now, visit.prompt)

    def _parted(self, visit: Visit) -> None:
        self.queue.leave(self.now, visit.prompt, served=False)

    # -- in between -------------------------------------------------------------------------------------------------

    def holds_back(self, sequence: Sequence) -> bool:
        """It can run from now on (the sibling before it is gone). True: but not before its request may; the order is
        not to know of it."""
        visit = self._visits[sequence.request.id]
        if visit.stage is not Stage.STARTED:
            visit.sequences.append(sequence)
        return visit.stage is Stage.PARKED

    def let_go(self, sequence: Sequence) -> bool:
        """A sequence that waits has ended. True: it waited here, and the order does not know of it."""
        visit = self._visits[sequence.request.id]
        if visit.stage is not Stage.STARTED:
            visit.sequences.remove(sequence)
        return visit.stage is Stage.PARKED

    def ended(self, request_id: str, finished: bool) -> None:
        """The last sequence of a request has ended. `finished`: by itself."""
        visit = self._visits.pop(request_id)
        if visit.stage is Stage.QUEUED:
            self._parted(visit)
        if visit.stage is not Stage.STARTED and (line := self._tenants.get(visit.tenant)) is not None:
            line.leave(self.now, visit.prompt, served=False)
        self.inside.leave(self.now, visit.prompt, served=finished)
        self.times.forget(visit.limits)
        if self.gate is not None:
            self.gate.ended(visit)
        visit.stage = Stage.ENDED

    def late(self, now: float) -> Iterator[tuple[list[Sequence], str]]:
        """Live sequences whose time is up, by request, and why in words."""
        self.now = now
        for sequences, reason in self.times.due(now):
            yield [one for one in sequences if one.state is not SequenceState.FINISHED], reason

    # -- a step -----------------------------------------------------------------------------------------------------

    def open(self, now: float) -> None:
        """A step is about to be decided."""
        self.now = now
        if self.gate is not None:
            self.gate.open(now, self._batch.occupant.size - len(self._batch))

    def close(self, step: Step, now: float) -> None:
        """It is decided: who started has left the queue."""
        for sequence in (*step.new, *step.resumed):
            visit = self._visits[sequence.request.id]
            if visit.stage is Stage.QUEUED:
                self._started(visit, now)
            if self.gate is not None:
                self.gate.entered(sequence, visit)
        if self.gate is not None:
            self.gate.close()

    def _started(self, visit: Visit, now: float) -> None:
        self.queue.leave(now, visit.prompt, served=True)
        if (line := self._tenants.get(visit.tenant)) is not None:
            line.leave(now, visit.prompt, served=True)
        if self.gate is not None:
            self.gate.started(visit, now)
        visit.stage = Stage.STARTED

    def generated(self, rows: RowArray, now: float) -> None:
        """Each of these rows [S] got one more token."""
        self.now = now
        if self.gate is not None:
            self.gate.generated(self._batch, rows, now)

    @property
    def next(self) -> float | None:
        """When an empty step would be decided otherwise although nothing happens; None: never."""
        times = [self.times.next, None if self.gate is None else self.gate.next]
        return min((time for time in times if time is not None), default=None)

    @property
    def idle(self) -> bool:
        """Nobody here depends on time: neither limits nor quotas."""
        return not len(self.times) and self.gate is None

    def set_quotas(self, quotas: Quotas, now: float) -> None:
        """Limits per tenant from now on; those there already count."""
        self.now = now
        if self.gate is None:
            rows = self._batch.occupant.size
            self.gate = QuotaGate(quotas, self._waiting, rows, self._joined, self._parted)
        else:
            self.gate.change(quotas, now, self._visits)

    @property
    def num_parked(self) -> int:
        """Requests that wait outside the order."""
        return 0 if self.gate is None else self.gate.num_parked

    def parked(self) -> list[Sequence]:
        """Sequences that wait outside the order."""
        return [] if self.gate is None else self.gate.parked()

    def why(self) -> dict[str, str]:
        """For every sequence that waits outside the order, why."""
        return {} if self.gate is None else self.gate.why()

    def check_accounts(self) -> None:
        """Prove the counts. AssertionError says what differs."""
        stages = [visit.stage for visit in self._visits.values()]
        assert self.queue.requests == stages.count(Stage.QUEUED), f"{self.queue.requests} counted in the queue"
        assert self.inside.requests == len(stages), f"{self.inside.requests} counted inside, {len(stages)} are"
        if self.gate is not None:
            self.gate.check_accounts(self._visits)
