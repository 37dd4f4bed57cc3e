"""A request on which engine processes die: it is found and given up, and everybody else is served."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from paceline.engine import messages
from paceline.engine.client import EngineProcess
from paceline.errors import RequestError

from .running import CONFIG, GREEDY, Running, collect

PROMPTS = ("The sky is", "Two and two make", "Grass is")


@pytest.mark.slow
def test_the_request_an_engine_dies_on_is_given_up_and_the_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    send = EngineProcess.send

    def deadly(self: EngineProcess, message: messages.ToEngine) -> None:
        if isinstance(message, messages.Add) and message.request_id == "poison":
            os.kill(self.pid, signal.SIGKILL)
        else:
            send(self, message)

    running = Running(replace(CONFIG, restart_window=600.0))
    engine, params = running.engine, replace(GREEDY, max_tokens=8)

    async def all_of_them() -> list[object]:
        wanted = [collect(engine, prompt, params) for prompt in PROMPTS]
        wanted.insert(1, collect(engine, "poison", params, request_id="poison"))
        return await asyncio.gather(*wanted, return_exceptions=True)

    try:
        alone = [running(collect(engine, prompt, params)).text for prompt in PROMPTS]
        monkeypatch.setattr(EngineProcess, "send", deadly)
        first, poison, *rest = running(all_of_them())
        assert isinstance(poison, RequestError) and (poison.status, poison.code) == (500, "engine_error")
        assert [result.text for result in (first, *rest)] == alone  # type: ignore[attr-defined]
        assert engine.restarts == 3 and engine.is_healthy
        (entry,) = engine.log.find("poison")
        assert entry.state == "failed" and entry.restarts == 3
        assert running(collect(engine, PROMPTS[0], params)).text == alone[0]
    finally:
        running.close()
