"""What the drivers of all engines have in common. Standard library only: it runs in each engine's environment.

A driver is a process that loads one engine and then, for each line of JSON on standard input,

    {"prompts": [[token, ...], ...], "outputs": [count, ...]}

runs these requests all at once, greedily and without regard to end-of-sequence tokens, and answers with a line

    {"stamps": [[second, ...], ...], "resident": bytes, "peak": bytes}

where stamps are the seconds from the start at which each token of each request came out. Its first line says what it
is: {"ready": {"engine": ..., "version": ...}}. What libraries print goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Stepped(Protocol):
    """An engine that is stepped by hand."""

    def add(self, number: int, prompt: list[int], output: int) -> None: ...

    def step(self) -> Iterable[tuple[int, int]]:
        """Run a step; (request, tokens that came out) of those that got any."""
        ...


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--settings", type=json.loads, default={})
    return parser.parse_args()


def serve(start: Callable[[argparse.Namespace], tuple[Any, dict[str, Any]]]) -> None:
    """Run the protocol. `start` gives the engine (Stepped, or with a `run` of its own) and what it is."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine, about = start(arguments())
    print(json.dumps({"ready": about}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        run = getattr(engine, "run", None) or (lambda prompts, outputs: stepped(engine, prompts, outputs))
        stamps = run(asked["prompts"], asked["outputs"])
        short = [number for number, count in enumerate(asked["outputs"]) if len(stamps[number]) != count]
        resident, peak = memory()
        more = engine.memory() if hasattr(engine, "memory") else {}
        answer = {"stamps": stamps, "short": short, "resident": resident, "peak": peak, **more}
        print(json.dumps(answer), file=answers)


def stepped(engine: Stepped, prompts: list[list[int]], outputs: list[int]) -> list[list[float]]:
    """Add everything, then step until every request has its tokens."""
    stamps: list[list[float]] = [[] for _ in prompts]
    begin, left = time.perf_counter(), sum(outputs)
    for number, (prompt, output) in enumerate(zip(prompts, outputs)):  # noqa: B905
        engine.add(number, prompt, output)
    while left > 0:
        news = engine.step()
        now = time.perf_counter() - begin
        for number, tokens in news:
            stamps[number] += [now] * tokens
            left -= tokens
    return stamps


def memory() -> tuple[int, int]:
    """(resident, peak) bytes of this process."""
    found = {"VmRSS": 0, "VmHWM": 0}
    with open("/proc/self/status") as lines:
        for line in lines:
            name = line.partition(":")[0]
            if name in found:
                found[name] = int(line.split()[1]) * 1024
    return found["VmRSS"], found["VmHWM"]
