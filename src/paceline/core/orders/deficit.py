"""Longest prefix first among the tenants that have credit left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from paceline.core.orders.cache_aware import CacheAware, CacheAwareKnobs
from paceline.core.orders.ranked import Floats
from paceline.core.orders.shares import check_weights, grown, reweighed
from paceline.core.request import RowArray, Sequence, SequenceState
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.batch import Batch

_NO_CREDIT = 1e12  # added to the rank of those whose tenant has none


class DeficitLongestPrefix(CacheAware):
    """Every tenant has credit, which its uncached prompt tokens and generated tokens use up; below 1 it has to wait.

    When none of the tenants that wait has any, all tenants without get a quantum, as often as it takes. Who came back
    after a preemption was paid for and needs none.
    """

    def __init__(self, policy: DeficitPolicy) -> None:
        super().__init__(policy)
        self._policy = policy
        self.credit: Floats = np.zeros(8)  # by index of the tenant
        self._rate: Floats = np.ones(8)
        self._weights = dict(policy.weights)
        self._known: npt.NDArray[np.float64] = np.zeros(8)  # 1: a tenant has this index
        self.refills = 0

    def add(self, sequence: Sequence) -> None:
        self._know(sequence)
        super().add(sequence)

    def resume(self, sequence: Sequence) -> None:
        self._know(sequence)
        super().resume(sequence)

    def _know(self, sequence: Sequence) -> None:
        tenant = sequence.tenant
        if tenant >= self.credit.size:
            self.credit, self._known = grown(self.credit, tenant, 0.0), grown(self._known, tenant, 0.0)
            self._rate = grown(self._rate, tenant, 1.0)
        if not self._known[tenant]:
            self._known[tenant] = 1.0
            self._rate[tenant] = 1.0 / self._weights.get(sequence.request.tenant, 1.0)

    def started(self, sequence: Sequence, cached: int) -> None:
        super().started(sequence, cached)
        if sequence.state is not SequenceState.PREEMPTED:
            tokens = int(sequence.tokens.size) - cached
            self.credit[sequence.tenant] -= self._policy.prompt_weight * tokens * self._rate[sequence.tenant]

    def generated(self, batch: Batch, rows: RowArray) -> None:
        counts = np.bincount(batch.tenant[rows], minlength=self.credit.size)
        self.credit -= self._policy.output_weight * counts * self._rate

    def reweigh(self, weights: Mapping[str, float], tenants: Mapping[str, int]) -> None:
        """Other weights from now on, before those of the policy. `tenants`: indexes of those seen."""
        self._weights = {**self._policy.weights, **weights}
        reweighed(self._rate, self._weights, tenants)

    def rank(self) -> Floats:
        broke = self.credit[self.tenant.astype(np.intp)] <= 0
        ranks: Floats = np.where(broke, _NO_CREDIT, 0.0) - self.cached
        return ranks

    def first(self) -> Sequence | None:
        return next(self.walk(), None)

    def walk(self) -> Iterator[Sequence]:
        """Only those with credit; when nobody has any, and nobody with credit was passed over, after a refill."""
        passed: set[str] = set()
        while True:
            for sequence in super().walk():
                if sequence.id in passed:
                    continue
                if self.credit[sequence.tenant] <= 0 and not self._is_free(sequence):
                    break
                yield sequence
                if sequence.id in self._slots:
                    passed.add(sequence.id)
            if passed or not self.size:
                return
            self._refill()

    def _is_free(self, sequence: Sequence) -> bool:
        """It goes whether its tenant has credit or not."""
        slot = self._slots[sequence.id]
        return bool(self.place[slot] < 0 or self.clock.time >= self.due[slot])

    def _refill(self) -> None:
        """As many rounds, each of a quantum for everybody without credit, as give credit to one that waits."""
        quantum = self._policy.quantum
        best = self.credit[self.tenant.astype(np.intp)].max()
        rounds = int(-best // quantum) + 1
        needs = np.floor(-self.credit / quantum) + 1
        self.credit += np.where((self.credit <= 0) & (self._known > 0), np.minimum(needs, rounds) * quantum, 0.0)
        self.refills += rounds


@dataclass(frozen=True)
class DeficitPolicy(CacheAwareKnobs):
    """Deficit longest prefix match (Cao et al. 2025). A large quantum is near lpm, a small one near vtc."""

    bound: ClassVar[str] = (
        "fair: a tenant that waits falls behind another by no more than two quanta and what vtc allows; within a "
        "tenant, overdue after `stretch` times the tokens found waiting and `patience` more"
    )
    quantum: int = 4096
    prompt_weight: float = 1.0
    output_weight: float = 2.0
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantum < 1:
            raise ConfigError("quantum", self.quantum, "a whole number of tokens of at least 1")
        for name in ("prompt_weight", "output_weight"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ConfigError(name, getattr(self, name), "a number of at least 0")
        check_weights(self.weights)

    def queue(self) -> DeficitLongestPrefix:
        return DeficitLongestPrefix(self)
