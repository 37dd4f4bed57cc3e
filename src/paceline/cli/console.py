"""What `paceline serve` shows: stages of the start, and what to do next."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from paceline import __version__
from paceline.errors import ConfigError
from paceline.logs import log_to_standard_error

if TYPE_CHECKING:
    from paceline.engine.async_engine import AsyncEngine
    from paceline.server.config import ServerConfig

LEVELS = ("debug", "info", "warning", "error")


class LoadingDisplay:
    """Shows the stages of the start: a moving line on a terminal, plain lines elsewhere. Call it with each stage."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._status: Any = None

    def __enter__(self) -> LoadingDisplay:
        if sys.stdout.isatty():
            from rich.console import Console

            self._status = Console(highlight=False).status("starting", spinner="dots")
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __call__(self, stage: str) -> None:
        if self._status is not None:
            self._status.update(stage)
            self._status.console.print(f"  {time.monotonic() - self._started:5.1f} s  {stage}", markup=False)
        else:
            print(f"paceline: {stage}", flush=True)

    def stop(self) -> None:
        """No more stages."""
        if self._status is not None:
            self._status.stop()


def print_ready(engine: AsyncEngine, config: ServerConfig) -> None:
    """Say where the server is and how to ask it something."""
    print(f"\nPaceline {__version__} serves {engine.model_name} at {base_url(config)}")
    print("Try:\n")
    print(curl_line(engine, config), end="\n\n", flush=True)


def base_url(config: ServerConfig) -> str:
    """A URL at which this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{config.port}"


def curl_line(engine: AsyncEngine, config: ServerConfig) -> str:
    """One line to paste into a shell."""
    question = "What is the capital of France?"
    body: dict[str, Any] = {"model": engine.model_name, "temperature": 0, "max_tokens": 64}
    if engine.tokenizer.chat_template is None:
        path, body = "/v1/completions", {**body, "prompt": question}
    else:
        path, body = "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": question}]}
    parts = ["curl", base_url(config) + path, "-H", "Content-Type: application/json"]
    if config.api_keys:
        # A key belongs on a screen at most, not into a log file.
        key = config.api_keys[0] if sys.stdout.isatty() else "YOUR_API_KEY"
        parts += ["-H", f"Authorization: Bearer {key}"]
    return shlex.join([*parts, "-d", json.dumps(body)])


def set_up_logging(level: str, access_log: bool) -> None:
    """Log to standard error: our own messages from `level` up, others' from warnings up."""
    if level not in LEVELS:
        raise ConfigError("--log-level", level, "one of " + ", ".join(LEVELS))
    log_to_standard_error()
    logging.getLogger("paceline").setLevel(level.upper())
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
