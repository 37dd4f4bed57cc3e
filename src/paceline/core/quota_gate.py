"""Who is over the tenant's quota waits outside the order, in a line of the tenant's own.

So no order and no composition has to know of quotas, and whoever is over them stands in nobody's way. A request is let
into the order when its tenant's buckets hold what it costs beside what is promised to those let in before; it pays when
it starts. Hence what starts in any window of t seconds costs at most burst + rate * t.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from paceline.core.batch import Batch
from paceline.core.orders import Order
from paceline.core.quota_account import NEVER, QuotaAccount
from paceline.core.quotas import Quotas
from paceline.core.request import RowArray, Sequence, SequenceState
from paceline.core.visit import Stage, Visit
from paceline.errors import RequestError

MOST_BORROWERS = 16  # requests over quota tried in a step


class QuotaGate:
    """Per tenant: an account, and the line of those it cannot pay for yet, first come, first served.

    A step costs O(log n) per request let in, and one look per tenant that generates where output tokens are limited.
    `let_in` and `put_back` are told of every request that enters or leaves the order by this.
    """

    def __init__(
        self,
        quotas: Quotas,
        waiting: Order,
        rows: int,
        let_in: Callable[[Visit], None],
        put_back: Callable[[Visit], None],
    ) -> None:
        self._take(quotas)
        self._waiting = waiting
        self._let_in, self._put_back = let_in, put_back
        self._names: dict[int, str] = {}  # tenants seen, by index
        self._accounts: dict[int, QuotaAccount] = {}
        self._parked: dict[int, OrderedDict[str, Visit]] = {}  # tenant -> request id -> visit; no empty ones
        self._queued: dict[int, OrderedDict[str, Visit]] = {}  # let in, paid for by promise, not started; no empty ones
        self._look: dict[int, None] = {}  # tenants whose first in line may be able to come in now
        self._times: list[tuple[float, int]] = []  # heap of when a tenant's first will be able to
        self._time: dict[int, float] = {}  # tenant -> its live entry in the heap
        self._reasons: dict[int, tuple[float, str]] = {}  # tenant -> until when its first waits, and what for
        self._now = 0.0
        self.num_parked = 0
        self._borrowers: list[Visit] = []  # let in for this step only
        self._pays: npt.NDArray[np.bool_] = np.ones(rows, np.bool_)  # by row of the batch: its tokens are charged

    def _take(self, quotas: Quotas) -> None:
        self.quotas = quotas
        everybody = (quotas.default, *quotas.tenants.values())
        self._limits_output = any(quota.output_tokens is not None for quota in everybody)

    # -- coming and going -------------------------------------------------------------------------------------------

    def check(self, tenant: str, prompt: int) -> None:
        """RequestError for a request that its tenant can never pay."""
        quota = self.quotas.of(tenant)
        limit = quota.prompt_tokens
        if limit is not None and prompt > limit.burst and not quota.borrow:
            raise RequestError(
                f"the prompt has {prompt} tokens, but the quota of tenant {tenant!r} never holds more than "
                f"{limit.burst:g} prompt tokens at once; shorten the prompt or raise prompt_tokens.burst",
                param="prompt",
                code="quota_too_small",
            )

    def enter(self, visit: Visit, tenant: str, now: float) -> None:
        """A request comes: into the order, or to its tenant's line.

        One taken over from an engine that died is let in at once: its stream is to go on.
        """
        if visit.tenant not in self._accounts:
            self._names[visit.tenant] = tenant
            self._accounts[visit.tenant] = QuotaAccount(self.quotas.of(tenant), now)
        if any(sequence.tokens.size > sequence.prompt_length for sequence in visit.sequences):
            self._admit(visit)
            return
        visit.stage = Stage.PARKED
        self.num_parked += 1
        self._parked.setdefault(visit.tenant, OrderedDict())[visit.request_id] = visit
        self._serve(visit.tenant, now)

    def started(self, visit: Visit, now: float) -> None:
        """The first of its sequences starts."""
        if visit.counted:
            self._unqueue(visit)
            self._accounts[visit.tenant].pay(visit.prompt, now)
            self._look[visit.tenant] = None

    def ended(self, visit: Visit) -> None:
        """The last of its sequences has ended, from whatever stage."""
        tenant = visit.tenant
        if visit.stage is Stage.PARKED:
            self._unpark(visit)
        elif visit.stage is Stage.QUEUED and visit.counted:
            self._unqueue(visit)
            self._accounts[tenant].withdraw(visit.prompt)
        elif visit.counted:
            self._accounts[tenant].inside -= 1
        self._look[tenant] = None

    def entered(self, sequence: Sequence, visit: Visit) -> None:
        """A sequence has taken a row."""
        if sequence.row >= 0:
            self._pays[sequence.row] = not visit.borrows

    def generated(self, batch: Batch, rows: RowArray, now: float) -> None:
        """Each of these rows [S] got one more token."""
        if not self._limits_output:
            return
        counts = np.bincount(batch.tenant[rows[self._pays[rows]]])
        for tenant in np.flatnonzero(counts).tolist():
            account = self._accounts.get(tenant)
            if account is None or account.output_tokens is None:
                continue
            account.generated(int(counts[tenant]), now)
            if account.overdrawn:
                self._recall(tenant)

    def _recall(self, tenant: int) -> None:
        """Nobody of it may start: those let in go back to the head of its line."""
        for visit in reversed(self._queued.pop(tenant, OrderedDict()).values()):
            self._accounts[tenant].withdraw(visit.prompt)
            self._park_first(visit)

    def _park_first(self, visit: Visit) -> None:
        for sequence in visit.sequences:
            self._waiting.remove(sequence)
        visit.stage, visit.borrows, visit.counted = Stage.PARKED, False, False
        self.num_parked += 1
        line = self._parked.setdefault(visit.tenant, OrderedDict())
        line[visit.request_id] = visit
        line.move_to_end(visit.request_id, last=False)
        self._look[visit.tenant] = None
        self._put_back(visit)

    def _unpark(self, visit: Visit) -> None:
        line = self._parked[visit.tenant]
        del line[visit.request_id]
        self.num_parked -= 1
        if not line:
            del self._parked[visit.tenant]
            self._time.pop(visit.tenant, None)

    def _unqueue(self, visit: Visit) -> None:
        queued = self._queued[visit.tenant]
        del queued[visit.request_id]
        if not queued:
            del self._queued[visit.tenant]

    # -- a step -----------------------------------------------------------------------------------------------------

    def open(self, now: float, room: int) -> None:
        """Before a step is decided: let in whom the accounts can pay for, and, when nobody is left waiting and there
        is room for so many, some that borrow."""
        self._now = now
        while self._times and self._times[0][0] <= now:
            when, tenant = heappop(self._times)
            if self._time.get(tenant) == when:
                del self._time[tenant]
                self._look[tenant] = None
        look, self._look = self._look, {}
        for tenant in look:
            self._serve(tenant, now)
        if self._parked and room > 0 and not len(self._waiting):
            self._lend(min(room, MOST_BORROWERS))

    def _serve(self, tenant: int, now: float) -> None:
        while tenant in self._parked:
            visit = next(iter(self._parked[tenant].values()))
            when, reason = self._accounts[tenant].when(visit.prompt, now)
            if when > now:
                self._note(tenant, when, reason)
                return
            self._unpark(visit)
            self._admit(visit)

    def _note(self, tenant: int, when: float, reason: str) -> None:
        self._reasons[tenant] = when, reason
        if when == NEVER:
            self._time.pop(tenant, None)
        elif self._time.get(tenant) != when:
            self._time[tenant] = when
            heappush(self._times, (when, tenant))

    def _admit(self, visit: Visit) -> None:
        visit.stage, visit.counted = Stage.QUEUED, True
        self._accounts[visit.tenant].promise(visit.prompt)
        self._queued.setdefault(visit.tenant, OrderedDict())[visit.request_id] = visit
        self._put_into_order(visit)

    def _put_into_order(self, visit: Visit) -> None:
        for sequence in visit.sequences:
            self._waiting.add(sequence)
        self._let_in(visit)

    def _lend(self, most: int) -> None:
        """Let in the first of each tenant that borrows, in turns."""
        lines = [
            iter(list(self._parked[tenant].values())[:most])
            for tenant in sorted(self._parked)
            if self._accounts[tenant].quota.borrow
        ]
        while lines and len(self._borrowers) < most:
            for line in list(lines):
                visit = next(line, None)
                if visit is None:
                    lines.remove(line)
                elif len(self._borrowers) < most:
                    self._unpark(visit)
                    visit.stage, visit.borrows = Stage.QUEUED, True
                    self._borrowers.append(visit)
                    self._put_into_order(visit)

    def close(self) -> None:
        """The step is decided: whoever was to borrow and did not start waits outside again."""
        for visit in reversed(self._borrowers):
            if visit.stage is Stage.QUEUED:
                self._park_first(visit)
        self._borrowers.clear()

    def parked(self) -> list[Sequence]:
        """Who waits here, tenant by tenant."""
        return [one for line in self._parked.values() for visit in line.values() for one in visit.sequences]

    # -- others -----------------------------------------------------------------------------------------------------

    @property
    def next(self) -> float | None:
        """When somebody will be able to come in."""
        while self._times and self._time.get(self._times[0][1]) != self._times[0][0]:
            heappop(self._times)
        return self._times[0][0] if self._times else None

    def why(self) -> dict[str, str]:
        """For every sequence that waits here, why."""
        reasons: dict[str, str] = {}
        for tenant, line in self._parked.items():
            head = next(iter(line))
            for visit in line.values():
                reason = "quota: arrived after the last step was scheduled"
                if tenant in self._reasons:
                    reason = self._reason(tenant) + ("" if visit.request_id == head else f", behind {head}")
                reasons.update((sequence.id, reason) for sequence in visit.sequences)
        return reasons

    def _reason(self, tenant: int) -> str:
        name, (when, reason) = self._names[tenant], self._reasons[tenant]
        if when == NEVER:
            return f"quota until another request of tenant {name} ends or starts ({reason})"
        return f"quota until {when:.1f} s, in {max(when - self._now, 0.0):.1f} s (tenant {name}: {reason})"

    def change(self, quotas: Quotas, now: float, visits: dict[str, Visit]) -> None:
        """Other limits from now on. What was used counts under them."""
        self._take(quotas)
        for tenant, name in self._names.items():
            self._accounts[tenant] = QuotaAccount(quotas.of(name), now, self._accounts[tenant])
        for visit in visits.values():
            if visit.counted and visit.tenant in self._accounts:
                if visit.stage is Stage.STARTED:
                    self._accounts[visit.tenant].inside += 1
                else:
                    self._accounts[visit.tenant].promise(visit.prompt)
        self._look = dict.fromkeys(self._parked)

    def check_accounts(self, visits: dict[str, Visit]) -> None:
        """Prove that every request is in one place, and counted there. AssertionError says what differs."""
        for tenant, account in self._accounts.items():
            mine = [visit for visit in visits.values() if visit.tenant == tenant]
            inside = sum(visit.counted for visit in mine)
            assert account.inside == inside, f"tenant {tenant}: {account.inside} counted, {inside} inside"
            parked = {visit.request_id for visit in mine if visit.stage is Stage.PARKED}
            assert parked == set(self._parked.get(tenant, ())), f"tenant {tenant}: parked ones differ"
            promised = sum(visit.counted and visit.stage is Stage.QUEUED for visit in mine)
            assert promised == len(self._queued.get(tenant, ())), f"tenant {tenant}: promises differ"
        assert self.num_parked == sum(visit.stage is Stage.PARKED for visit in visits.values())
        for visit in visits.values():
            for sequence in visit.sequences:
                waits = sequence.state is SequenceState.WAITING
                assert waits or visit.stage is Stage.STARTED, f"{sequence.id} is {sequence.state} and not started"
