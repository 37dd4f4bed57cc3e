"""A server that misbehaves to order, and a live one with the real model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.fake_server import FakeServer, running
from tests.server.conftest import LiveServer, start_server


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    flags = ("--max-model-len", "1024", "--kv-cache-memory", "128MiB", "--max-num-seqs", "16")
    server = start_server(tmp_path_factory.mktemp("bench") / "log", *flags)
    try:
        yield server
    finally:
        try:
            server.stop()
        finally:
            server.process.kill()
