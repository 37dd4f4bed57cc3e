"""The scheduler never changes text: greedy tokens are those of `transformers`, however the work is cut and shared."""

from __future__ import annotations

import random

import pytest

from paceline.core.params import SamplingParams

from .conftest import NEW_TOKENS
from .rig import Rig

GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
pytestmark = pytest.mark.slow


def add_all(rig: Rig, prompts: list[list[int]], prefix: str = "p") -> None:
    for index, prompt in enumerate(prompts):
        rig.add(f"{prefix}{index}", prompt, GREEDY)


def generated(rig: Rig, prompts: list[list[int]], prefix: str = "p") -> list[list[int]]:
    return [rig.tokens[f"{prefix}{index}"] for index in range(len(prompts))]


def test_each_prompt_alone(rig: Rig, prompts: list[list[int]], expected: list[list[int]]) -> None:
    for index, prompt in enumerate(prompts):
        rig.start(enable_prefix_caching=False)
        rig.add("alone", prompt, GREEDY)
        assert rig.run()["alone"] == expected[index], f"prompt {index}"


def test_all_at_once(rig: Rig, prompts: list[list[int]], expected: list[list[int]]) -> None:
    rig.start()
    add_all(rig, prompts)
    rig.run()
    assert generated(rig, prompts) == expected


@pytest.mark.parametrize("discipline", ["paceline", "vllm"])
def test_in_chunks_of_seven_tokens(
    rig: Rig, prompts: list[list[int]], expected: list[list[int]], discipline: str
) -> None:
    rig.start(discipline, long_prefill_token_threshold=7, max_num_batched_tokens=64)
    add_all(rig, prompts)
    rig.run()
    assert generated(rig, prompts) == expected


@pytest.mark.parametrize("discipline", ["paceline", "vllm"])
def test_with_a_warm_cache(rig: Rig, prompts: list[list[int]], expected: list[list[int]], discipline: str) -> None:
    rig.start(discipline)
    add_all(rig, prompts, "cold")
    rig.run()
    add_all(rig, prompts, "warm")
    rig.run()
    assert generated(rig, prompts, "warm") == expected
    assert rig.scheduler.totals.prefix_hit_tokens > sum(map(len, prompts)) // 2


def test_with_hits_that_end_inside_a_block(rig: Rig, prompts: list[list[int]], expected: list[list[int]]) -> None:
    """Each prompt meets one that shares all but its last few tokens, so that blocks are copied and cut."""
    rig.start()
    for index, prompt in enumerate(prompts):
        if len(prompt) > 4:
            rig.add(f"seed{index}", [*prompt[:-3], 11, 12, 13, *range(100, 120)], GREEDY)
    rig.run()
    inside = 0
    add_all(rig, prompts)

    def count_copies(rig: Rig, step: int) -> None:
        nonlocal inside
        inside += len(rig.scheduler.step.copies) if rig.scheduler.step else 0

    rig.run(count_copies)
    assert inside >= 10
    assert generated(rig, prompts) == expected


@pytest.mark.parametrize(("discipline", "order"), [("paceline", "fcfs"), ("vllm", "fcfs"), ("vllm", "priority")])
def test_with_so_few_blocks_that_sequences_are_preempted(
    rig: Rig, prompts: list[list[int]], expected: list[list[int]], discipline: str, order: str
) -> None:
    rig.start(discipline, order, num_blocks=24, max_model_len=256, max_num_batched_tokens=96)
    for index, prompt in enumerate(prompts):
        rig.add(f"p{index}", prompt, GREEDY, priority=index % 3)
    rig.run()
    assert generated(rig, prompts) == expected
    assert rig.scheduler.totals.preemptions > 0 or discipline == "paceline"


def test_with_aborts_around_them(rig: Rig, prompts: list[list[int]], expected: list[list[int]]) -> None:
    chance = random.Random(7)
    rig.start(num_blocks=96, max_num_batched_tokens=128)
    add_all(rig, prompts)
    doomed = [f"doomed{index}" for index in range(20)]
    for index, name in enumerate(doomed):
        rig.add(name, prompts[index][::-1] + prompts[index], GREEDY)

    def abort_some(rig: Rig, step: int) -> None:
        if step > 1 and doomed and chance.random() < 0.7:
            rig.scheduler.abort(doomed.pop(chance.randrange(len(doomed))), float(step))

    rig.run(abort_some)
    assert generated(rig, prompts) == expected


def test_as_forks(rig: Rig, prompts: list[list[int]], expected: list[list[int]]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, n=3)
    rig.start()
    for index, prompt in enumerate(prompts[:20]):
        rig.add(f"p{index}", prompt, params)
    rig.run()
    for index in range(20):
        assert [rig.tokens[name] for name in (f"p{index}", f"p{index}#1", f"p{index}#2")] == [expected[index]] * 3


def test_a_seed_gives_the_same_text_alone_in_a_batch_and_after_a_preemption(rig: Rig, prompts: list[list[int]]) -> None:
    def sampled(index: int) -> SamplingParams:
        return SamplingParams(temperature=0.9, top_p=0.95, seed=1000 + index, max_tokens=20, ignore_eos=True)

    alone = []
    for index, prompt in enumerate(prompts[:16]):
        rig.start()
        rig.add("alone", prompt, sampled(index))
        alone.append(rig.run()["alone"])
    for settings in ({}, {"num_blocks": 12, "max_model_len": 128, "max_num_batched_tokens": 96}):
        rig.start("vllm", **settings)
        for index, prompt in enumerate(prompts[:16]):
            rig.add(f"p{index}", prompt, sampled(index))
        rig.run()
        assert generated(rig, prompts[:16]) == alone
    assert rig.scheduler.totals.preemptions > 0
