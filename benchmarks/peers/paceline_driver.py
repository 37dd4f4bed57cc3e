"""Paceline, in this process. Settings are fields of EngineConfig."""

from __future__ import annotations

from typing import Any

import numpy as np
import turns

from paceline import __version__
from paceline.cli.offline_engine import OfflineEngine
from paceline.engine.config import EngineConfig


class Engine:
    def __init__(self, config: EngineConfig) -> None:
        self._engine = OfflineEngine(config)
        self.info = self._engine.info

    def add(self, number: int, prompt: list[int], output: int) -> None:
        self._engine.add(number, np.asarray(prompt, np.int32), output)

    def step(self) -> list[tuple[int, int]]:
        return [(news.number, news.tokens) for news in self._engine.step() or []]

    def memory(self) -> dict[str, Any]:
        held = self._engine.memory()
        return {"weights": held.weights, "kv": held.kv_resident, "rest": held.rest}


def start(options: Any) -> tuple[Engine, dict[str, Any]]:
    engine = Engine(EngineConfig(model=options.model, threads=options.threads, **options.settings))
    return engine, {"engine": "paceline", "version": __version__, "description": engine.info["description"]}


if __name__ == "__main__":
    turns.serve(start)
