"""What was asked of the engine process and is not answered yet."""

from __future__ import annotations

import asyncio
from typing import Any


class Questions:
    """Tickets for questions that a process may take with it when it dies. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[asyncio.Future[Any], Any]] = {}
        self._last_ticket = 0

    def ask(self, otherwise: Any) -> tuple[int, asyncio.Future[Any]]:
        """A ticket for the question, and its answer to come: `otherwise` if the process ends before it gives one."""
        self._last_ticket += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[self._last_ticket] = (answer, otherwise)
        return self._last_ticket, answer

    def answer(self, ticket: int, value: Any) -> None:
        """The process has answered. One who does not wait any longer misses nothing."""
        answer, _ = self._open.pop(ticket, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(value)

    def give_up(self) -> None:
        """The process is gone; whoever waits gets what was to be said otherwise."""
        for answer, otherwise in self._open.values():
            if not answer.done():
                answer.set_result(otherwise)
        self._open.clear()
