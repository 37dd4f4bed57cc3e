"""What became of each request: live ones, and the last of those that ended."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from paceline.core.account import PHASES
from paceline.engine import messages

LIVE = "live"


@dataclass
class Entry:
    """One request. `sequences`: the account of each that has ended, as the engine sent it."""

    number: int
    id: str
    tenant: str
    priority: int
    prompt_tokens: int
    n: int
    owner: str | None  # who may see it besides those who see all
    created: float  # seconds since 1970
    begin: float  # on the log's clock
    end: float | None = None
    state: str = LIVE  # live, finished, aborted, expired, refused or failed
    error: str = ""
    restarts: int = 0  # engines that died with it
    sequences: dict[int, dict[str, Any]] = field(default_factory=dict)

    def report(self, now: float, live: dict[int, dict[str, Any]] | None = None) -> dict[str, Any]:
        """As plain values. `live`: what the engine says of sequences that have not ended.

        `total_seconds` is measured here; what the engine's own seconds leave of it is `other_seconds`: the way to it
        and back, text, and engines that died.
        """
        shown = {**(live or {}), **self.sequences}
        sequences = [{"index": index, **shown[index]} for index in sorted(shown)]
        total = (now if self.end is None else self.end) - self.begin
        inside = max((sum(one[f"{phase}_seconds"] for phase in PHASES) for one in sequences), default=0.0)
        found: dict[str, Any] = {
            "id": self.id,
            "object": "request",
            "created": int(self.created),
            "tenant": self.tenant,
            "priority": self.priority,
            "state": self._state(sequences),
            "prompt_tokens": self.prompt_tokens,
            "n": self.n,
            "total_seconds": round(total, 6),
            "other_seconds": round(max(total - inside, 0.0), 6),
            "sequences": sequences,
        }
        if self.restarts:
            found["engine_restarts"] = self.restarts
        if self.error:
            found["error"] = self.error
        return found

    def _state(self, sequences: list[dict[str, Any]]) -> str:
        """Of a live request, that of the sequence which has come farthest."""
        if self.state != LIVE:
            return self.state
        states = {one["state"] for one in sequences}
        return next((state for state in ("running", "preempted", "waiting", "blocked") if state in states), "arriving")


class RequestLog:
    """Entries by number. Of those that have ended the last `size` are kept; all operations are O(1)."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._live: dict[int, Entry] = {}
        self._ended: OrderedDict[int, Entry] = OrderedDict()

    def open(
        self,
        number: int,
        request_id: str,
        tenant: str,
        priority: int,
        prompt_tokens: int,
        n: int = 1,
        owner: str | None = None,
    ) -> None:
        """A request was taken in."""
        now = self._clock()
        self._live[number] = Entry(number, request_id, tenant, priority, prompt_tokens, n, owner, time.time(), now)

    def note(self, account: messages.Account) -> None:
        """The engine ended a sequence. It may say so after the request was closed here."""
        entry = self._live.get(account.number) or self._ended.get(account.number)
        if entry is not None:
            entry.sequences[account.index] = account.report

    def close(self, number: int, state: str, error: str = "") -> Entry | None:
        """A request is over; None when it was not open."""
        entry = self._live.pop(number, None)
        if entry is None:
            return None
        entry.state, entry.error, entry.end = state, error, self._clock()
        self._ended[number] = entry
        while len(self._ended) > self._size:
            self._ended.popitem(last=False)
        return entry

    def restarted(self) -> None:
        """The engine died; live requests go on with another."""
        for entry in self._live.values():
            entry.restarts += 1

    def live(self) -> list[Entry]:
        """Those that have not ended, oldest first."""
        return list(self._live.values())

    def ended(self) -> Iterator[Entry]:
        """The last ones that have, newest first."""
        return reversed(self._ended.values())

    def find(self, request_id: str) -> list[Entry]:
        """The request of that id, the newest first; else the parts of it, where it had several prompts."""
        entries = [*reversed(self._live.values()), *self.ended()]
        found = [entry for entry in entries if entry.id == request_id]
        parts = [entry for entry in entries if entry.id.startswith(request_id + "-")]
        return found[:1] or sorted(parts, key=lambda entry: entry.number)

    @property
    def now(self) -> float:
        return self._clock()
