"""The sampler: what it chooses, that it depends on nothing it should not, and what it reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from paceline.core.params import SamplingParams
from paceline.core.plan import Entered, StepPlan
from paceline.core.request import sequence_seed
from paceline.exec.distribution import draw, draw_truncated, largest
from paceline.exec.random_numbers import uniform
from paceline.exec.sampler import LogitsError, Sampler

CPU = torch.device("cpu")
EOS = 7
ROWS = 256


class Row:
    """A sequence in a row of the batch, as the scheduler would keep it."""

    def __init__(self, prompt: Sequence[int], generated: Sequence[int] = (), seed: int = 0, **params: Any) -> None:
        self.tokens = [*prompt, *generated]
        self.prompt_length = len(prompt)
        self.seed = seed
        self.params = SamplingParams(**params)


def plan_for(rows: dict[int, Row], order: Sequence[int], entered: Sequence[int]) -> StepPlan:
    tokens = np.zeros((ROWS, 256), np.int32)
    prompt_lengths = np.zeros(ROWS, np.int32)
    for row, sequence in rows.items():
        tokens[row, : len(sequence.tokens)] = sequence.tokens
        prompt_lengths[row] = sequence.prompt_length
    return StepPlan(
        step=0,
        rows=np.array(order, np.int32),
        starts=np.array([len(rows[row].tokens) - 1 for row in order], np.int32),
        counts=np.ones(len(order), np.int32),
        samples=np.ones(len(order), np.bool_),
        tokens=tokens,
        block_table=np.zeros((ROWS, 1), np.int32),
        prompt_lengths=prompt_lengths,
        entered=[Entered(row, f"s{row}", rows[row].params, rows[row].seed, rows[row].prompt_length) for row in entered],
    )


def new_sampler(vocab: int) -> Sampler:
    return Sampler(ROWS, vocab, CPU, (EOS,))


def sample(sampler: Sampler, logits: torch.Tensor, rows: dict[int, Row], enter: bool = True) -> Any:
    plan = plan_for(rows, list(rows), list(rows) if enter else [])
    sampler.enter(plan)
    return sampler.sample(logits.clone(), plan.rows, plan)


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def kept_probabilities(
    logits: torch.Tensor, temperature: float = 1.0, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0
) -> np.ndarray:
    """The exact distribution to draw from, the plain way: sorted, in float64."""
    values = np.exp((logits.double().numpy() - logits.double().numpy().max()) / temperature)
    values[values < min_p * values.max()] = 0.0
    order = np.argsort(-values, kind="stable")
    if top_k > 0:
        values[order[top_k:]] = 0.0
    values /= values.sum()
    before = np.cumsum(values[order]) - values[order]
    values[order[(before >= top_p) & (np.arange(len(order)) > 0)]] = 0.0
    return values / values.sum()


# --- greedy


@pytest.mark.parametrize("vocab", [5, 31, 256, 1000, 49152, 50257])
def test_greedy_takes_the_largest_logit_and_the_lowest_id_on_ties(vocab: int) -> None:
    logits = random_logits(3, vocab)
    logits[1] = 0.25
    logits[2, vocab - 1] = logits[2, vocab // 2] = 99.0
    rows = {row: Row([1, 2], temperature=0.0) for row in (4, 2, 9)}
    tokens, logprobs = sample(new_sampler(vocab), logits, rows)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [int(logits[0].argmax()), 0, vocab // 2]
    assert logprobs is None


def test_greedy_rows_do_not_change_beside_rows_of_any_other_kind() -> None:
    logits = random_logits(5, 3000)
    rows = {
        0: Row([1], temperature=0.0),
        1: Row([1], top_p=0.5),
        2: Row([1], temperature=0.0),
        3: Row([1], temperature=1e-7),
        4: Row([1], temperature=2.0, logprobs=3),
    }
    tokens, _ = sample(new_sampler(3000), logits, rows)
    assert tokens[[0, 2, 3]].tolist() == logits[[0, 2, 3]].argmax(dim=-1).tolist()


def test_a_step_in_which_no_row_samples_gives_nothing() -> None:
    sampler = new_sampler(100)
    plan = plan_for({0: Row([1])}, [0], [0])
    plan.samples[:] = False
    tokens, logprobs = sampler.sample(torch.zeros(0, 100), plan.rows[plan.samples], plan)
    assert tokens.shape == (0,) and logprobs is None


# --- distributions


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.4},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 40},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.7},
    {"temperature": 0.8, "min_p": 0.02, "top_k": 30, "top_p": 0.95},
    {"min_p": 0.05, "top_p": 0.8},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_drawn_tokens_follow_the_exact_distribution(case: dict[str, Any]) -> None:
    """Chi-square over 256 rows of 20 positions; a token outside the kept set is never drawn."""
    vocab = 97
    logits = random_logits(1, vocab, seed=3)[0]
    expected = kept_probabilities(logits, **case)
    sampler = new_sampler(vocab)
    drawn: Counter[int] = Counter()
    rows = {row: Row([1], seed=1000 + row, **case) for row in range(ROWS)}
    for position in range(1, 21):
        tokens, _ = sample(sampler, logits.expand(ROWS, -1), rows, enter=position == 1)
        drawn.update(tokens.tolist())
        for sequence in rows.values():
            sequence.tokens.append(0)
    total = sum(drawn.values())
    observed = np.array([drawn[token] for token in range(vocab)])
    assert not observed[expected == 0.0].any()
    common = expected * total >= 5
    pooled_observed = np.append(observed[common], observed[~common].sum())
    pooled_expected = np.append(expected[common], expected[~common].sum()) * total
    pooled_observed, pooled_expected = (
        pooled_observed[pooled_expected > 0],
        pooled_expected[pooled_expected > 0],
    )
    chi_square = ((pooled_observed - pooled_expected) ** 2 / pooled_expected).sum()
    freedom = max(len(pooled_expected) - 1, 1)
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom) + 6


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.5, 6.0])
@pytest.mark.parametrize("vocab", [50, 3000, 40001])
def test_truncation_keeps_exactly_the_set_a_full_sort_keeps(vocab: int, scale: float) -> None:
    """From a nearly flat distribution to a peaked one, so that every way of finding the set is taken."""
    cases = [
        *[(k, 1.0) for k in (1, 50, 700, 2500)],
        *[(vocab, p) for p in (1e-6, 0.50011, 0.90011, 0.98999)],
        (50, 0.80011),
        (2500, 0.50011),
    ]  # shares that no number of equal tokens has exactly
    cases = [(min(k, vocab), p) for k, p in cases]
    logits = (random_logits(1, vocab, seed=5, scale=scale)[0] * 4).round() / 4  # with many ties
    expected = np.stack([kept_probabilities(logits, top_k=k, top_p=p) for k, p in cases])
    numbers = uniform(np.arange(len(cases), dtype=np.uint64), np.full(len(cases), 3))
    tokens = draw_truncated(
        logits.sub(logits.max()).exp().expand(len(cases), -1).contiguous(),
        torch.tensor([k for k, _ in cases]),
        torch.tensor([p for _, p in cases], dtype=torch.float64),
        torch.from_numpy(numbers),
    )
    for i, token in enumerate(tokens.tolist()):
        border = expected[i].cumsum()
        assert border[token] - expected[i][token] - 1e-5 <= numbers[i] <= border[token] + 1e-5
        assert expected[i][token] > 0


def test_a_uniform_number_at_either_end_never_draws_an_impossible_token() -> None:
    weights = torch.zeros(4, 1000)
    weights[:, 300] = 1e-3
    weights[:, 700] = 5.0
    numbers = torch.tensor([0.0, 2.0**-53, 1.0 - 2.0**-53, 0.5], dtype=torch.float64)
    assert draw(weights, numbers).tolist() == [300, 300, 700, 700]


def test_the_largest_value_is_found_in_the_last_incomplete_block() -> None:
    logits = torch.zeros(2, 700)
    logits[0, 699] = 1.0
    logits[1, 300] = 1.0
    values, ids = largest(logits)
    assert ids.tolist() == [699, 300] and values.tolist() == [1.0, 1.0]


# --- seeds


def test_a_sequence_draws_the_same_tokens_alone_and_in_any_batch_and_row() -> None:
    vocab = 2000
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.5},
        {"top_p": 0.9},
        {"top_k": 30, "top_p": 0.9},
        {"min_p": 0.02},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 0.0},
        {"temperature": 5.0, "top_p": 0.99},
        {"logit_bias": {5: 4.0}, "min_tokens": 9},
    ]
    logits = random_logits(len(kinds), vocab, seed=8)
    sequences = [Row([3, 4, 5], [5, 9], seed=2**63 + i, **kind) for i, kind in enumerate(kinds)]
    alone = [
        sample(new_sampler(vocab), logits[i : i + 1], {0: sequence})[0].item() for i, sequence in enumerate(sequences)
    ]
    generator = np.random.default_rng(0)
    for _ in range(10):
        chosen = generator.permutation(len(kinds))[: generator.integers(1, len(kinds) + 1)]
        places = generator.permutation(16)[: len(chosen)]
        rows = {int(place): sequences[i] for place, i in zip(places, chosen, strict=True)}
        tokens, _ = sample(new_sampler(vocab), logits[chosen], rows)
        assert tokens.tolist() == [alone[i] for i in chosen]


def test_a_sequence_that_enters_again_goes_on_with_the_same_tokens() -> None:
    vocab = 300
    kind: dict[str, Any] = {
        "temperature": 1.2,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.7,
        "min_tokens": 12,
    }
    steps = random_logits(24, vocab, seed=2)

    def generate(preempted_before: set[int]) -> list[int]:
        sampler, row = new_sampler(vocab), 3
        sequence = Row([5, 6, 6], seed=77, **kind)
        for step, logits in enumerate(steps):
            if step in preempted_before:  # another sequence takes the row, and this one comes back in another
                other = {row: Row([1, 2], top_k=3, logit_bias={9: 5.0}, presence_penalty=2.0)}
                sample(sampler, logits[None], other)
                row = (row + 5) % 16
            enter = step == 0 or step in preempted_before
            tokens, _ = sample(sampler, logits[None], {row: sequence}, enter=enter)
            sequence.tokens.append(int(tokens[0]))
        return sequence.tokens

    assert generate(set()) == generate({4, 5, 13}) == generate(set(range(1, 24)))


def test_uniform_numbers_are_uniform_and_unrelated_between_siblings_and_positions() -> None:
    seeds = np.array([sequence_seed(2**64 - 3, index) for index in range(64)], np.uint64)
    numbers = np.stack([uniform(seeds, np.full(64, position)) for position in range(512)])
    assert numbers.min() >= 0.0 and numbers.max() < 1.0
    assert len(np.unique(numbers)) == numbers.size
    counts = np.histogram(numbers, 64, (0.0, 1.0))[0]
    expected = numbers.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 4 * np.sqrt(126)
    for left, right in (
        (numbers[1:], numbers[:-1]),
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers[1:, :-1], numbers[:-1, 1:]),
    ):
        correlation = np.corrcoef(left.ravel(), right.ravel())[0, 1]
        assert abs(correlation) < 4 / np.sqrt(left.size)


def test_seeds_are_unsigned_64_bit_and_negative_ones_wrap() -> None:
    logits = random_logits(1, 5000)
    tokens = [sample(new_sampler(5000), logits, {0: Row([1], seed=seed)})[0].item() for seed in (-5, 2**64 - 5, 5)]
    assert tokens[0] == tokens[1] != tokens[2]


# --- penalties, bias, min_tokens


def penalised(logits: torch.Tensor, row: Row) -> torch.Tensor:
    """The definition, token by token."""
    result = logits.clone()
    prompt, generated = row.tokens[: row.prompt_length], Counter(row.tokens[row.prompt_length :])
    for token in {*prompt, *generated}:
        if result[token] > 0:
            result[token] /= row.params.repetition_penalty
        else:
            result[token] *= row.params.repetition_penalty
        result[token] -= row.params.frequency_penalty * generated[token]
        result[token] -= row.params.presence_penalty * (generated[token] > 0)
    return result


def test_penalties_equal_the_plain_definition_as_the_text_grows() -> None:
    vocab, generator = 150, np.random.default_rng(1)
    sampler = new_sampler(vocab)
    kinds = [
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.6},
        {"frequency_penalty": 1.1},
        {"presence_penalty": 1.9},
        {"presence_penalty": -1.0, "frequency_penalty": -0.4, "repetition_penalty": 1.2},
        {},
    ]
    rows = {
        row: Row(generator.integers(0, vocab, 90).tolist(), temperature=0.0, **kind) for row, kind in enumerate(kinds)
    }
    for step in range(40):
        logits = random_logits(len(rows), vocab, seed=step, scale=1.0)
        tokens, _ = sample(sampler, logits, rows, enter=step == 0)
        for i, sequence in rows.items():
            assert tokens[i] == penalised(logits[i], sequence).argmax()
            sequence.tokens.append(int(generator.integers(0, vocab)))  # the tokens of the row are what counts


def test_a_prompt_token_beyond_the_vocabulary_is_no_obstacle_to_penalties() -> None:
    logits = torch.zeros(1, 10)
    logits[0, 3] = 1.0
    tokens, _ = sample(new_sampler(10), logits, {0: Row([3, 12], temperature=0.0, repetition_penalty=2.0)})
    assert tokens.tolist() == [3]


def test_logit_bias_moves_the_choice_and_ids_beyond_the_vocabulary_are_ignored() -> None:
    logits = torch.zeros(3, 20)
    logits[:, 4] = 5.0
    rows = {
        0: Row([1], temperature=0.0, logit_bias={4: -100.0, 9: 1.0, 500: 50.0}),
        1: Row([1], temperature=0.0),
        2: Row([1], logit_bias={11: 100.0}),
    }
    tokens, _ = sample(new_sampler(20), logits, rows)
    assert tokens.tolist() == [9, 4, 11]


def test_no_end_is_chosen_before_min_tokens_even_with_a_bias_for_it() -> None:
    logits = torch.zeros(1, 20)
    logits[0, EOS], logits[0, 8], logits[0, 3] = 9.0, 8.0, 1.0
    sampler = new_sampler(20)
    sequence = Row([1, 2], temperature=0.0, min_tokens=2, stop_token_ids=(8,), logit_bias={8: 50.0})
    chosen = []
    for step in range(3):
        tokens, _ = sample(sampler, logits, {0: sequence}, enter=step == 0)
        chosen.append(int(tokens[0]))
        sequence.tokens.append(chosen[-1])
    assert chosen == [3, 3, 8]


def test_a_row_taken_over_by_another_sequence_inherits_nothing() -> None:
    logits = random_logits(1, 50)
    sampler = new_sampler(50)
    best = int(logits.argmax())
    loaded = Row(
        [best],
        [best] * 5,
        min_tokens=9,
        stop_token_ids=(best,),
        logit_bias={best: -100.0},
        repetition_penalty=9.0,
        frequency_penalty=2.0,
        temperature=3.0,
        logprobs=2,
    )
    sample(sampler, logits, {5: loaded})
    tokens, logprobs = sample(sampler, logits, {5: Row([best], [best], temperature=0.0)})
    assert tokens.tolist() == [best] and logprobs is None


# --- log-probabilities


def test_logprobs_are_of_the_raw_distribution_whatever_the_parameters() -> None:
    vocab = 1500
    logits = random_logits(4, vocab, seed=11)
    raw = logits.double().log_softmax(dim=-1)
    rows = {
        2: Row([1], temperature=0.0, logprobs=5),
        0: Row([1, 9], [9, 9], temperature=2.0, logprobs=0, frequency_penalty=2.0, logit_bias={9: 3.0}),
        1: Row([1], temperature=0.3),
        7: Row([1], temperature=4.0, top_k=2, logprobs=20),
    }
    tokens, report = sample(new_sampler(vocab), logits, rows)
    assert report[2] is None
    for i, count in ((0, 5), (1, 0), (3, 20)):
        found = report[i]
        assert found.token == tokens[i]
        assert found.logprob == pytest.approx(float(raw[i, found.token]), abs=1e-4)
        assert found.rank == 1 + int((raw[i] > raw[i, found.token]).sum())
        order = raw[i].argsort(descending=True, stable=True)[:count]
        assert found.top_ids == order.tolist()
        assert found.top_logprobs == pytest.approx(raw[i, order].tolist(), abs=1e-4)


def test_equal_logprobs_are_reported_by_lowest_id_and_share_a_rank() -> None:
    logits = torch.zeros(1, 400)
    logits[0, 390] = logits[0, 77] = 2.0
    found = new_sampler(400).prompt_logprobs(logits, np.array([390]), 5)[0]
    assert found.top_ids == [77, 390, 0, 1, 2]
    assert found.rank == 1


def test_prompt_logprobs_name_each_given_token() -> None:
    vocab = 700
    logits, ids = random_logits(90, vocab, seed=4), np.random.default_rng(0).integers(0, vocab, 90)
    raw = logits.double().log_softmax(dim=-1)
    found = new_sampler(vocab).prompt_logprobs(logits, torch.from_numpy(ids), 1)
    assert [one.token for one in found] == ids.tolist()
    assert [one.logprob for one in found] == pytest.approx(raw[np.arange(90), ids].tolist(), abs=1e-4)
    assert [one.top_ids for one in found] == [[int(row.argmax())] for row in raw]
    assert new_sampler(vocab).prompt_logprobs(logits[:0], ids[:0], 1) == []


# --- logits that are no logits


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_finite_maximum_are_refused_by_row_and_sequence(value: float, temperature: float) -> None:
    logits = random_logits(3, 600)
    logits[1] = value
    rows = {row: Row([1], temperature=temperature) for row in (3, 8, 5)}
    with pytest.raises(LogitsError, match=r"row 8 \(s8\)") as caught:
        sample(new_sampler(600), logits, rows)
    assert caught.value.rows == [8] and caught.value.sequence_ids == ["s8"]


def test_a_vocabulary_with_impossible_tokens_is_sampled_from_the_possible_ones() -> None:
    logits = torch.full((4, 600), -torch.inf)
    logits[:, 40] = 1.0
    kinds: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 30}, {"min_p": 0.1, "logprobs": 3}]
    rows = {row: Row([1], **kind) for row, kind in enumerate(kinds)}
    tokens, _ = sample(new_sampler(600), logits, rows)
    assert tokens.tolist() == [40] * 4
