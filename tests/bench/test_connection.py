"""A server that does not answer: said in plain words, and a limit of ours is not called a missing server."""

from __future__ import annotations

import asyncio
import socket
import ssl

import aiohttp
import pytest

from paceline.bench.client import send
from paceline.bench.connection import reason
from paceline.bench.errors import BenchError
from paceline.bench.target import Target, discover, open_session


def told(url: str, timeout: float = 30.0) -> str:
    async def ask() -> None:
        async with open_session(timeout) as session:
            await discover(session, Target(url))

    with pytest.raises(BenchError) as caught:
        asyncio.run(ask())
    return str(caught.value)


def test_a_refused_connection_is_called_that_and_nothing_else() -> None:
    assert told("http://127.0.0.1:9") == "no server answers at http://127.0.0.1:9: Connection refused"
    assert told("https://127.0.0.1:9").endswith(": Connection refused")

    async def one() -> str:
        async with open_session(5.0) as session:
            return (await send(session, Target("http://127.0.0.1:9"), b"{}")).error

    assert asyncio.run(one()) == "ClientConnectorError: Connection refused"


def test_a_server_that_is_slower_than_the_timeout_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert (
            told(url, 0.05) == f"{url} did not answer within --timeout 0.05 (seconds); raise it, or see to the server"
        )


def test_reasons_are_short() -> None:
    assert reason(socket.gaierror(-2, "Name or service not known")) == "Name or service not known"
    assert reason(ConnectionResetError(104, "whatever")) == "Connection reset by peer"
    assert reason(aiohttp.ServerDisconnectedError()) == "Server disconnected"
    assert reason(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")).startswith("tls: ")
