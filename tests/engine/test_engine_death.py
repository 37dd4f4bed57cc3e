"""What becomes of requests, and of processes, when an engine is stopped, hangs, or dies."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.engine.outputs import CompletionResult
from paceline.errors import EngineDeadError

from .running import CONFIG, GREEDY, PROMPT, SEEDED, Running, collect


@pytest.mark.slow
def test_streams_survive_the_death_of_the_engine_process_word_for_word(running: Running, engine) -> None:
    """Greedy and seeded texts are those of an undisturbed run, and no token comes twice."""
    kinds = {
        "greedy": (PROMPT, GREEDY),
        "seeded": (PROMPT, SEEDED),
        "forks": ("My favourite colour is", replace(SEEDED, n=2, seed=11, max_tokens=16)),
        "stopped early": ("One two three", replace(SEEDED, n=2, max_tokens=2)),
        "drawn seed": ("In winter", replace(SEEDED, seed=None, max_tokens=16)),
    }

    async def undisturbed() -> dict[str, CompletionResult]:
        names = [name for name in kinds if name != "drawn seed"]
        results = await asyncio.gather(*(collect(engine, *kinds[name]) for name in names))
        return dict(zip(names, results, strict=True))

    async def disturbed() -> dict[str, CompletionResult]:
        old = engine.engine_pid
        generated = 0

        async def read(name: str) -> CompletionResult:
            nonlocal generated
            prompt, params = kinds[name]
            result = CompletionResult.empty(name, None, [], params.n)
            async for output in engine.generate(prompt, params):
                result.add(output)
                generated += sum(len(delta.token_ids) for delta in output.sequences)
                if generated > 40 and engine.engine_pid == old:
                    os.kill(old, signal.SIGKILL)
            return result

        return dict(zip(kinds, await asyncio.gather(*map(read, kinds)), strict=True))

    expected, restarts = running(undisturbed()), engine.restarts
    results = running(disturbed())
    assert engine.restarts == restarts + 1 and engine.is_healthy
    for name, result in expected.items():
        for one, other in zip(result.completions, results[name].completions, strict=True):
            assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
    assert len(results["drawn seed"].completions[0].token_ids) == 16
    stats = running(engine.stats())
    assert (stats["requests"], stats["running"], stats["restarts"]) == (0, 0, restarts + 1)


@pytest.mark.slow
def test_a_clean_stop_lets_running_requests_finish_and_takes_no_new_ones() -> None:
    running = Running(CONFIG)
    engine, pid = running.engine, running.engine.engine_pid

    async def drain() -> tuple[CompletionResult, CompletionResult]:
        begun = asyncio.Event()

        async def read() -> CompletionResult:
            result = CompletionResult.empty("r", None, [], 1)
            async for output in engine.generate(PROMPT, GREEDY):
                result.add(output)
                begun.set()
            return result

        reader = asyncio.create_task(read())
        await begun.wait()
        stopping = asyncio.create_task(engine.shutdown(120))
        await asyncio.sleep(0)
        assert not engine.is_healthy
        with pytest.raises(EngineDeadError, match="shutting down"):
            await collect(engine, PROMPT, GREEDY)
        await stopping
        return await reader

    result = running(drain())
    assert result.completions[0].finish_reason == "length"
    assert len(result.completions[0].token_ids) == 24
    running.close()  # again: nothing happens
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_an_engine_that_hangs_is_replaced_and_its_requests_go_on() -> None:
    running = Running(replace(CONFIG, watchdog_timeout=1.5))
    engine = running.engine

    async def hang() -> list[int]:
        stream = engine.generate(PROMPT, replace(GREEDY, max_tokens=200, ignore_eos=True))
        tokens = [*(await anext(stream)).sequences[0].token_ids]
        stopped = engine.engine_pid
        os.kill(stopped, signal.SIGSTOP)
        async for output in stream:
            tokens += [token for delta in output.sequences for token in delta.token_ids]
        assert engine.engine_pid != stopped
        return tokens

    after = running(hang())
    undisturbed = running(collect(engine, PROMPT, replace(GREEDY, max_tokens=200, ignore_eos=True)))
    assert engine.restarts == 1
    assert after == undisturbed.completions[0].token_ids
    running.close()


@pytest.mark.slow
def test_an_engine_that_keeps_dying_is_given_up_with_an_error_to_all() -> None:
    running = Running(replace(CONFIG, max_restarts=0))
    engine = running.engine

    async def die() -> None:
        stream = engine.generate(PROMPT, replace(GREEDY, max_tokens=900))
        await anext(stream)
        os.kill(engine.engine_pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="signal 9"):
            async for _ in stream:
                pass
        with pytest.raises(EngineDeadError):
            await collect(engine, PROMPT, GREEDY)
        assert not engine.is_healthy

    running(die())
    running.close()


_ORPHAN = """
import asyncio, sys
from paceline.engine.client import EngineProcess
from paceline.engine.config import EngineConfig

async def main():
    process = await EngineProcess.start(EngineConfig())
    print(process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_the_engine_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _ORPHAN], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert parent.stdout is not None
    handle = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.kill()
        parent.wait()
        ended, _, _ = select.select([handle], [], [], 60)
        assert ended, "the engine process outlived its parent"
        assert not list(tmp_path.glob("paceline-*")), "its socket was left behind"
    finally:
        os.close(handle)
