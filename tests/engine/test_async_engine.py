"""The engine process and its streams, end to end on the real model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paceline.core.params import SamplingParams
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.config import EngineConfig
from paceline.engine.outputs import CompletionResult
from paceline.errors import ConfigError, ModelError, RequestError

from .running import CONFIG, GREEDY, PROMPT, SEEDED, Running, collect


def test_the_start_says_what_it_does_and_what_it_made(running: Running, engine: AsyncEngine) -> None:
    assert any("loading" in stage for stage in running.stages)
    assert any("room for" in stage for stage in running.stages)
    assert engine.is_healthy
    assert (engine.model_name, engine.max_model_len, engine.vocab_size) == ("smollm2-135m", 1024, 49152)
    assert engine.info["num_blocks"] == 256


def test_a_chat_prompt_is_answered_token_by_token(running: Running, engine: AsyncEngine) -> None:
    prompt = engine.tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])

    async def stream() -> list[Any]:
        return [output async for output in engine.generate(prompt, SamplingParams(temperature=0, max_tokens=20))]

    outputs = running(stream())
    assert "".join(output.sequences[0].text for output in outputs) == "The capital of France is Paris."
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    last = outputs[-1].sequences[0]
    assert (last.finish_reason, last.stop_reason, last.token_ids) == ("stop", None, [2])
    assert len(outputs) > 3


def test_many_at_once_give_what_each_gives_alone(running: Running, engine: AsyncEngine) -> None:
    short = replace(GREEDY, max_tokens=8)
    prompts = [f"Number {number} is" for number in range(6)]

    async def both() -> tuple[list[CompletionResult], list[CompletionResult]]:
        alone = [await collect(engine, prompt, short) for prompt in prompts]
        return alone, await asyncio.gather(*(collect(engine, prompt, short) for prompt in prompts))

    alone, together = running(both())
    assert [result.text for result in alone] == [result.text for result in together]
    assert all(len(result.completions[0].token_ids) == 8 for result in together)


def test_several_sequences_of_a_request_differ_and_its_seed_repeats_them(running: Running, engine) -> None:
    params = replace(SEEDED, n=3, max_tokens=10)

    async def twice() -> list[CompletionResult]:
        return [await collect(engine, PROMPT, params) for _ in range(2)]

    first, second = running(twice())
    texts = [completion.text for completion in first.completions]
    assert len(set(texts)) == 3
    assert texts == [completion.text for completion in second.completions]
    assert all(completion.finish_reason == "length" for completion in first.completions)


def test_a_repeated_prompt_reports_its_cached_tokens(running: Running, engine: AsyncEngine) -> None:
    tokens = engine.tokenizer.encode("once upon a time " * 12)

    async def twice() -> list[CompletionResult]:
        short = replace(GREEDY, max_tokens=2)
        return [await collect(engine, tokens, short, cache_salt="a salt of its own") for _ in range(2)]

    first, second = running(twice())
    assert first.cached_tokens == 0
    assert second.cached_tokens >= len(tokens) - 16
    assert first.text == second.text


def test_a_stop_string_ends_the_text_and_the_sequence(running: Running, engine: AsyncEngine) -> None:
    whole = running(collect(engine, PROMPT, GREEDY)).text
    stop = whole[len(whole) // 2 - 3 : len(whole) // 2]
    expected = whole[: whole.index(stop)]
    for include in (False, True):
        params = replace(GREEDY, stop=("never there", stop), include_stop_str_in_output=include)
        result = running(collect(engine, PROMPT, params)).completions[0]
        assert result.text == (expected + stop if include else expected)
        assert (result.finish_reason, result.stop_reason) == ("stop", stop)
    stats = running(engine.stats())
    assert (stats["running"], stats["waiting"], stats["requests"]) == (0, 0, 0)


def test_a_stop_token_is_reported_and_leaves_no_text(running: Running, engine: AsyncEngine) -> None:
    whole = running(collect(engine, PROMPT, GREEDY)).completions[0].token_ids
    stop = next(token for token in whole[4:] if token not in whole[:4])
    result = running(collect(engine, PROMPT, replace(GREEDY, stop_token_ids=(stop,)))).completions[0]
    assert result.token_ids == whole[: whole.index(stop) + 1]
    assert result.text == engine.tokenizer.decode(result.token_ids[:-1])
    assert (result.finish_reason, result.stop_reason) == ("stop", stop)


def test_logprobs_come_with_tokens_spelled(running: Running, engine: AsyncEngine) -> None:
    result = running(collect(engine, PROMPT, replace(GREEDY, max_tokens=4, logprobs=2, prompt_logprobs=1)))
    completion = result.completions[0]
    assert completion.logprobs is not None and result.prompt_logprobs is not None
    assert [entry.chosen.token_id for entry in completion.logprobs] == completion.token_ids
    assert "".join(entry.chosen.text for entry in completion.logprobs) == completion.text
    assert all(entry.top[0] == entry.chosen and len(entry.top) == 2 for entry in completion.logprobs)
    assert result.prompt_logprobs[0] is None
    assert [entry.chosen.token_id for entry in result.prompt_logprobs[1:]] == result.prompt_token_ids[1:]


def test_closing_the_stream_aborts_the_request_within_a_step(running: Running, engine: AsyncEngine) -> None:
    async def leave() -> tuple[dict[str, Any], dict[str, Any]]:
        stream = engine.generate(PROMPT, replace(GREEDY, max_tokens=900, n=2))
        await anext(stream)
        during = await engine.stats()
        await stream.aclose()
        return during, await engine.stats()

    during, after = running(leave())
    assert during["running"] + during["waiting"] > 0 and during["requests"] == 1
    assert (after["running"], after["waiting"], after["blocks_held"], after["requests"]) == (0, 0, 0, 0)


def test_cancelling_the_reader_aborts_the_request(running: Running, engine: AsyncEngine) -> None:
    async def cancel() -> dict[str, Any]:
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in engine.generate(PROMPT, replace(GREEDY, max_tokens=900)):
                begun.set()

        reader = asyncio.create_task(read())
        await begun.wait()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        return await engine.stats()

    stats = running(cancel())
    assert (stats["running"], stats["waiting"], stats["requests"]) == (0, 0, 0)


def test_abort_by_id_ends_the_stream_with_its_reason_and_frees_the_id(running: Running, engine) -> None:
    async def abort() -> tuple[bool, list[Any], bool]:
        outputs = []
        known = False
        async for output in engine.generate(PROMPT, replace(GREEDY, max_tokens=900), request_id="mine"):
            outputs.append(output)
            if len(outputs) == 1:
                with pytest.raises(RequestError, match="already in use"):
                    await collect(engine, PROMPT, GREEDY, request_id="mine")
                known = await engine.abort("mine")
        await collect(engine, PROMPT, replace(GREEDY, max_tokens=1), request_id="mine")
        return known, outputs, await engine.abort("mine")

    known, outputs, known_after = running(abort())
    assert known and not known_after
    assert outputs[-1].finished and outputs[-1].sequences[0].finish_reason == "abort"


@pytest.mark.parametrize(
    "prompt, params, pattern, code",
    [
        ("", GREEDY, "empty", None),
        ([], GREEDY, "empty", None),
        ([5, 49152], GREEDY, "49152", None),
        ([-1], GREEDY, "-1", None),
        ([[5]], GREEDY, "token ids", None),
        ([1.5], GREEDY, "token ids", None),
        ([2**70], GREEDY, "token ids", None),
        ("\ud800", GREEDY, "surrogate", None),
        ([5] * 1024, GREEDY, "maximum context length is 1024 tokens", "context_length_exceeded"),
        ([5] * 1010, GREEDY, r"1034 tokens \(1010 in the prompt, 24 to generate\)", "context_length_exceeded"),
        ([5], replace(GREEDY, max_tokens=2000), "2001 tokens", "context_length_exceeded"),
        ([5], replace(GREEDY, logit_bias={60000: 1.0}), "60000", None),
        ([5], replace(GREEDY, stop_token_ids=(-3,)), "-3", None),
    ],
)
def test_bad_requests_are_refused_at_the_door(running: Running, engine, prompt, params, pattern, code) -> None:
    with pytest.raises(RequestError, match=pattern) as caught:
        running(collect(engine, prompt, params))
    assert (caught.value.status, caught.value.code) == (400, code)
    assert running(engine.stats())["requests"] == 0


@pytest.mark.parametrize(
    "config, kind, pattern",
    [
        (replace(CONFIG, model="/nowhere/model.gguf"), ModelError, "/nowhere/model.gguf"),
        (replace(CONFIG, max_model_len=100_000), ConfigError, "--max-model-len: 100000 .* at most 8192"),
    ],
)
@pytest.mark.slow
def test_a_start_that_cannot_work_fails_with_the_reason(config: EngineConfig, kind: type, pattern: str) -> None:
    with pytest.raises(kind, match=pattern):
        asyncio.run(asyncio.wait_for(AsyncEngine.start(config), 120))


def test_bad_settings_are_refused_before_any_process_starts() -> None:
    for setting, value in (
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 32),
        ("dtype", "float8"),
        ("discipline", "none such"),
        ("order", "none such"),
        ("watermark", 1.0),
        ("seed", -1),
        ("gpu_memory_utilization", 1.5),
        ("shutdown_grace", -1.0),
        ("model", ""),
    ):
        with pytest.raises(ConfigError, match="--" + setting.replace("_", "-")):
            EngineConfig(**{setting: value})
