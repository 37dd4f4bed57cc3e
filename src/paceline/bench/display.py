"""A live line while a load runs."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from paceline.bench.load import Progress
from paceline.workload.requests import Workload

_BAR = 30


class LiveDisplay:
    """Redraws four times a second from a thread; on a pipe it prints one line every ten seconds."""

    def __init__(self, console: Console, progress: Progress, workload: Workload, title: str = "") -> None:
        self._console, self._progress = console, progress
        self._title = title or workload.name
        self._began = time.monotonic()
        self._live: Live | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LiveDisplay:
        self._began = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self.render, refresh_per_second=4, transient=True)
            self._live.start()
        else:
            self._thread = threading.Thread(target=self._lines, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def render(self) -> Table:
        """The line as it is now."""
        done = self._progress.ok + self._progress.failed
        filled = int(_BAR * done / max(self._progress.total, 1))
        table = Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column(overflow="fold")
        table.add_row(self._title, "[cyan]" + "━" * filled + "[/][dim]" + "━" * (_BAR - filled) + "[/]", self.line())
        return table

    def line(self) -> str:
        """In words."""
        progress, seconds = self._progress, max(time.monotonic() - self._began, 1e-9)
        done = progress.ok + progress.failed
        text = f"{done}/{progress.total}  {progress.in_flight} in flight  {progress.tokens / seconds:,.0f} tokens/s"
        if progress.recent_ttft:
            text += f"  TTFT p50 {float(np.median(progress.recent_ttft)) * 1e3:,.0f} ms"
        if len(progress.timeline):
            timeline = progress.timeline
            text += f"  server {timeline.running[-1]:.0f} running {timeline.waiting[-1]:.0f} waiting"
            text += f" KV {timeline.kv[-1]:.0%}"
        if progress.failed:
            text += f"  [red]{progress.failed} failed[/]"
        return f"{text}  {seconds:.0f} s"

    def _lines(self, every: float = 10.0) -> None:
        while not self._stop.wait(every):
            self._console.print(f"  {self.line()}", highlight=False)


def displays(console: Console, title: str = "") -> Any:
    """What `measure` takes as `watch`."""
    return lambda progress, workload: LiveDisplay(console, progress, workload, title)
