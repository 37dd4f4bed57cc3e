"""Fair shares between tenants: the virtual token counter."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from paceline.core.orders.shares import check_weights, grown, reweighed
from paceline.core.request import RowArray, Sequence, SequenceState
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.batch import Batch


class VirtualTokenCounter:
    """The tenant served least goes next, its oldest first; between equal tenants the one known first.

    A counter is charged `prompt_weight` a prompt token when the sequence starts and `output_weight` a generated one,
    the first included, over the tenant's weight. What has to be computed again after a preemption was paid for.
    A tenant that comes (back) with nothing waiting is lifted to the least counter of those waiting, or, when nobody
    is, to that of the tenant who waited last: idling earns no credit. Counters only rise, so the heap of tenants is
    put right lazily: O(log tenants).
    """

    def __init__(self, policy: VtcPolicy) -> None:
        self._policy = policy
        self.counters: npt.NDArray[np.float64] = np.zeros(8)  # by index of the tenant
        self._rate: npt.NDArray[np.float64] = np.ones(8)  # one over the tenant's weight
        self._weights = dict(policy.weights)
        self._queues: dict[int, OrderedDict[str, Sequence]] = {}  # of the tenants with somebody waiting
        self._heap: list[tuple[float, int]] = []  # (counter or less, tenant), one entry each of these
        self._queued: set[int] = set()  # tenants with an entry in the heap
        self._last_left = -1
        self._size = 0

    # -- coming and going -------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        self._queue(sequence)[sequence.id] = sequence

    def resume(self, sequence: Sequence) -> None:
        queue = self._queue(sequence)
        queue[sequence.id] = sequence
        queue.move_to_end(sequence.id, last=False)

    def _queue(self, sequence: Sequence) -> OrderedDict[str, Sequence]:
        tenant = sequence.tenant
        self._size += 1
        if tenant in self._queues:
            return self._queues[tenant]
        if tenant >= self.counters.size:
            self.counters, self._rate = grown(self.counters, tenant, 0.0), grown(self._rate, tenant, 1.0)
        self._rate[tenant] = 1.0 / self._weights.get(sequence.request.tenant, 1.0)
        if self._policy.lift:
            least = self._least()
            if least is None:
                least = self._last_left
            if least >= 0:
                self.counters[tenant] = max(self.counters[tenant], self.counters[least])
        queue = self._queues[tenant] = OrderedDict()
        if tenant not in self._queued:
            self._queued.add(tenant)
            heappush(self._heap, (float(self.counters[tenant]), tenant))
        return queue

    def remove(self, sequence: Sequence) -> None:
        queue = self._queues[sequence.tenant]
        del queue[sequence.id]
        self._size -= 1
        if not queue:
            del self._queues[sequence.tenant]
            self._last_left = sequence.tenant

    def started(self, sequence: Sequence, cached: int) -> None:
        if sequence.state is SequenceState.PREEMPTED:
            return
        tokens = int(sequence.tokens.size) - (0 if self._policy.charge_cached else cached)
        self.counters[sequence.tenant] += self._policy.prompt_weight * tokens * self._rate[sequence.tenant]

    def generated(self, batch: Batch, rows: RowArray) -> None:
        counts = np.bincount(batch.tenant[rows], minlength=self.counters.size)
        self.counters += self._policy.output_weight * counts * self._rate

    def reweigh(self, weights: Mapping[str, float], tenants: Mapping[str, int]) -> None:
        """Other weights from now on, before those of the policy. `tenants`: indexes of those seen."""
        self._weights = {**self._policy.weights, **weights}
        reweighed(self._rate, self._weights, tenants)

    # -- who is next ------------------------------------------------------------------------------------------------

    def _least(self) -> int | None:
        """The waiting tenant with the least counter."""
        heap = self._heap
        while heap:
            counter, tenant = heap[0]
            if tenant not in self._queues:
                heappop(heap)
                self._queued.remove(tenant)
            elif counter < self.counters[tenant]:
                heapreplace(heap, (float(self.counters[tenant]), tenant))
            else:
                return tenant
        return None

    def first(self) -> Sequence | None:
        tenant = self._least()
        return None if tenant is None else next(iter(self._queues[tenant].values()))

    def walk(self) -> Iterator[Sequence]:
        """Whoever is passed over counts as served, for what comes after it in this walk."""
        passed: dict[int, float] = {}
        lines: dict[int, Iterator[Sequence]] = {}
        heap = [(float(self.counters[tenant]), tenant) for tenant in self._queues]
        heapify(heap)
        while heap:
            counter, tenant = heappop(heap)
            now = float(self.counters[tenant]) + passed.get(tenant, 0.0)
            if counter < now:
                heappush(heap, (now, tenant))
                continue
            if tenant not in lines:
                lines[tenant] = iter(list(self._queues[tenant].values()))
            sequence = next(lines[tenant], None)
            if sequence is None:
                continue
            yield sequence
            if sequence.id in self._queues.get(tenant, ()):
                cost = self._policy.prompt_weight * int(sequence.tokens.size) * float(self._rate[tenant])
                passed[tenant] = passed.get(tenant, 0.0) + cost
            heappush(heap, (now, tenant))

    def __iter__(self) -> Iterator[Sequence]:
        return self.walk()

    def __len__(self) -> int:
        return self._size


@dataclass(frozen=True)
class VtcPolicy:
    """Virtual token counter (Sheng et al., OSDI 2024), weighted: every waiting tenant gets its share of the tokens.

    `weights`: by tenant, 1 for those not named. `charge_cached`: prompt tokens taken from the cache cost as well.
    """

    bound: ClassVar[str] = (
        "fair: of two tenants that both wait all the time neither gets ahead by more than 2 * max(prompt_weight * "
        "longest prompt, output_weight * KV capacity in tokens); within a tenant in order of arrival"
    )
    prompt_weight: float = 1.0
    output_weight: float = 2.0
    weights: Mapping[str, float] = field(default_factory=dict)
    lift: bool = True
    charge_cached: bool = False

    def __post_init__(self) -> None:
        for name in ("prompt_weight", "output_weight"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ConfigError(name, getattr(self, name), "a number of at least 0")
        check_weights(self.weights)

    def queue(self) -> VirtualTokenCounter:
        return VirtualTokenCounter(self)
