"""Admissions that look ahead: the peak of KV to come, and SGLang's new-token ratio."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from paceline.core.admissions.discounted_output_fits import DiscountedOutputFits
from paceline.core.admissions.peak_fits import peak
from paceline.core.config import SchedulerConfig
from tests.core.asks import Ask
from tests.core.world import World


def test_the_peak_is_that_of_the_worst_end() -> None:
    """Checked by simulation: 15, 24 and 30 tokens at the three ends, where adding up whole lives would say 35."""
    assert peak(np.array([10, 8, 6]), np.array([5, 2, 4])) == 30


def test_the_peak_is_exact_when_lives_are_known() -> None:
    random = Random(3)
    for _ in range(200):
        count = random.randint(1, 6)
        held = [random.randint(1, 9) for _ in range(count)]
        left = [random.randint(0, 9) for _ in range(count)]
        at = [sum(h + t for h, rest in zip(held, left, strict=True) if rest >= t) for t in range(10)]
        assert peak(np.array(held), np.array(left)) == max(at)


def sglang(num_blocks: int) -> World:
    config = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=1,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=2048,
        enable_prefix_caching=False,
    )
    return World(config, "sglang", knobs={"decay_steps": 10})


def ratio(world: World) -> float:
    admission = world.scheduler.discipline.admission
    assert isinstance(admission, DiscountedOutputFits)
    return admission.ratio(world.scheduler.builder).value


def test_the_ratio_falls_while_decoding_and_starts_again_when_idle() -> None:
    world = sglang(4000)
    world.add(Ask("a", (1, 2, 3), max_tokens=30))
    world.turn()
    assert ratio(world) == pytest.approx(0.7)
    for _ in range(5):
        world.turn()
    assert ratio(world) == pytest.approx(0.7 - 5 * (0.7 - 0.098) / 10)
    for _ in range(10):
        world.turn()
    assert ratio(world) == pytest.approx(0.098)
    world.drain()
    assert ratio(world) == pytest.approx(0.7)


def test_a_preemption_takes_the_shortest_output_and_sets_the_ratio() -> None:
    """Limits far above what the ratio expects let three start; then KV runs out."""
    world = sglang(60)
    for index, (prompt, arrive) in enumerate(((8, 0), (4, 3), (8, 3))):
        world.turn() if index and arrive else None
        world.add(Ask(f"r{index}", tuple(range(100 * index, 100 * index + prompt)), max_tokens=30, ignore_eos=False))
    while not world.scheduler.totals.preemptions:
        world.turn()
    step = world.scheduler.step
    assert step is not None
    gone = step.preempted[0][0]
    left = world.scheduler.running()
    generated = {
        sequence.id: int(world.scheduler.batch.length[sequence.row]) - sequence.prompt_length for sequence in left
    }
    assert all(gone.tokens.size - gone.prompt_length <= count for count in generated.values())
    before = sum(generated.values()) - len(generated)  # as they were when the step was decided
    expected = min((before + 20 * len(left)) / (30 * len(left) + 1), 1.0)
    assert ratio(world) == pytest.approx(expected)
    assert list(world.scheduler.waiting)[-1] is gone, "it waits behind everybody"
    world.drain()
