"""The executor runs plans: copies, samples, log-probabilities, sizes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from paceline.core.params import SamplingParams
from paceline.errors import ConfigError, ModelError
from paceline.exec import kv_memory
from paceline.exec.attention import LayerShape
from paceline.exec.attention.choose import choose_attention
from paceline.exec.config import ExecutorConfig
from paceline.exec.executor import ModelExecutor, end_tokens
from paceline.exec.kv_memory import KVSize, size_kv
from paceline.exec.loader import resolve

from .plans import PlanBatch
from .random_models import CONFIGS, random_model, save
from .test_native_decoder import texts, whole_logits

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def theirs():
    return random_model(CONFIGS["qwen3"]())


@pytest.fixture(scope="module")
def directory(theirs, tmp_path_factory):
    return save(theirs, tmp_path_factory.mktemp("model"))


@pytest.fixture
def executor(directory):
    return ModelExecutor(
        ExecutorConfig(str(directory), dtype="float32", device="cpu", block_size=4, num_blocks=64, threads=1)
    )


def test_it_says_what_the_scheduler_and_the_user_need(executor):
    assert (executor.vocab_size, executor.num_blocks, executor.block_size) == (97, 64, 4)
    assert executor.max_model_len == 256
    assert any("room for 256 tokens: 1 sequence of 256" in line for line in executor.description)
    assert any("float32 on cpu" in line for line in executor.description)


def test_a_step_that_samples_nothing_returns_no_tokens(executor):
    batch = PlanBatch(texts(20), num_blocks=64, block_size=4, max_model_len=64)
    result = executor.execute(batch.plan({0: 7}))
    assert result.tokens.shape == (0,) and result.logprobs is None and result.seconds > 0


def test_a_fork_from_copied_blocks_goes_on_as_its_source(executor):
    (prompt,) = texts(11)
    batch = PlanBatch([prompt, prompt], num_blocks=64, block_size=4, max_model_len=64)
    plan = batch.plan({0: 11})
    batch.complete(plan, executor.execute(plan).tokens)
    # Row 1 takes over row 0's first 10 tokens by copies and computes the last one itself.
    batch.computed[1] = 10
    plan = batch.plan({0: 1, 1: 1})
    plan.copies = np.stack([batch.block_table[0, :3], batch.block_table[1, :3]], 1)
    batch.complete(plan, executor.execute(plan).tokens)
    assert batch.generated(1)[0] == batch.generated(0)[0]


def test_prompt_logprobs_across_chunks(executor, theirs):
    asks = SamplingParams(temperature=0.0, prompt_logprobs=3)
    prompts = texts(9, 17, 5)
    batch = PlanBatch(
        prompts,
        num_blocks=64,
        block_size=4,
        max_model_len=64,
        params=[SamplingParams(temperature=0.0), asks, asks],
    )
    found: dict[int, list] = {}
    for counts in ({0: 9, 1: 6}, {2: 5, 1: 10}, {1: 1, 0: 1, 2: 1}, {1: 1, 2: 1}):
        plan = batch.plan(counts)
        result = executor.execute(plan)
        batch.complete(plan, result.tokens)
        for row, entries in (result.prompt_logprobs or {}).items():
            found.setdefault(row, []).extend(entries)
    assert sorted(found) == [1, 2]
    for row in found:
        expected = whole_logits(theirs, prompts[row]).log_softmax(-1)
        assert [position for position, _ in found[row]] == list(range(1, len(prompts[row])))
        for position, entry in found[row]:
            token = prompts[row][position]
            assert entry.token == token and len(entry.top_ids) == 3
            assert entry.logprob == pytest.approx(expected[position - 1, token].item(), abs=1e-3)


def test_logprobs_of_generated_tokens(executor, theirs):
    prompts = texts(6, 8)
    asks = SamplingParams(temperature=0.0, logprobs=2)
    batch = PlanBatch(
        prompts, num_blocks=64, block_size=4, max_model_len=64, params=[SamplingParams(temperature=0.0), asks]
    )
    plan = batch.plan()
    result = executor.execute(plan)
    assert result.logprobs[0] is None
    expected = whole_logits(theirs, prompts[1])[-1].log_softmax(-1)
    assert result.logprobs[1].token == int(result.tokens[1]) == int(expected.argmax())
    assert result.logprobs[1].logprob == pytest.approx(expected.max().item(), abs=1e-3)


def test_seeded_tokens_do_not_depend_on_the_batch(directory):
    def generate(prompts: list[list[int]], seeds: list[int]) -> list[list[int]]:
        executor = ModelExecutor(
            ExecutorConfig(str(directory), dtype="float32", device="cpu", block_size=4, num_blocks=64, threads=1)
        )
        batch = PlanBatch(
            prompts,
            num_blocks=64,
            block_size=4,
            max_model_len=32,
            params=SamplingParams(temperature=1.0, max_tokens=None),
            seeds=seeds,
        )
        for _ in range(12):
            plan = batch.plan()
            batch.complete(plan, executor.execute(plan).tokens)
        return [batch.generated(row) for row in range(len(prompts))]

    prompts = texts(5, 9, 7)
    together = generate(prompts, [11, 12, 13])
    assert [generate([prompt], [seed])[0] for prompt, seed in zip(prompts, [11, 12, 13], strict=True)] == together


def test_end_tokens_come_from_the_generation_config_first(tmp_path):
    model = random_model(CONFIGS["llama"]())
    directory = save(model, tmp_path)
    (directory / "generation_config.json").unlink(missing_ok=True)
    assert end_tokens(resolve(str(directory))) == (2,)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert end_tokens(resolve(str(directory))) == (5, 2)


LAYERS = [LayerShape(2, 8, 8)] * 3  # 3 layers * 2 heads * (8 + 8) * 4 bytes = 384 bytes a token


def size(**settings) -> KVSize:
    return size_kv(ExecutorConfig(block_size=4, **settings), LAYERS, torch.float32, CPU, 512)


def test_kv_size_from_bytes():
    found = size(kv_cache_memory=384 * 4 * 1000 + 5)
    assert found == KVSize(1000, 4, 384, 512)
    assert found.sentence() == "room for 4,000 tokens: 7 sequences of 512"
    assert KVSize(2588, 16, 384, 8192).sentence() == "room for 41,408 tokens: 40 sequences of 1,024"


def test_the_context_shrinks_to_the_room_unless_it_was_asked_for():
    assert size(kv_cache_memory=384 * 4 * 20).max_model_len == 80
    with pytest.raises(ConfigError, match=r"--max-model-len: 200 .* at most 80"):
        size(kv_cache_memory=384 * 4 * 20, max_model_len=200)


def test_a_context_longer_than_the_model_is_refused():
    with pytest.raises(ConfigError, match=r"--max-model-len: 513 .* at most 512"):
        size(max_model_len=513)


def test_no_room_for_one_block_is_refused():
    with pytest.raises(ModelError, match="--kv-cache-memory"):
        size(kv_cache_memory=384 * 4 - 1)


def test_more_kv_than_memory_is_refused():
    with pytest.raises(ConfigError, match="--kv-cache-memory"):
        size(kv_cache_memory=1 << 50)


def test_memory_share_on_a_cpu(monkeypatch):
    monkeypatch.setattr(kv_memory, "available_memory", lambda device: 384 * 4 * 1000)
    assert size().num_blocks == 500
    assert size(gpu_memory_utilization=0.9).num_blocks == 900
    monkeypatch.setattr(kv_memory, "available_memory", lambda device: 100 << 30)
    assert size().num_blocks == (4 << 30) // (384 * 4)


def test_attention_by_name():
    _, name = choose_attention("auto", torch.float32, CPU, LAYERS, 16)
    assert name == "reference (no native kernels are in use)"
    assert choose_attention("reference", torch.float32, CPU, LAYERS, 16)[1] == "reference"
    with pytest.raises(ConfigError, match="no native kernels"):
        choose_attention("cpu", torch.float32, CPU, LAYERS, 16)
    with pytest.raises(ConfigError, match="needs CUDA"):
        choose_attention("varlen", torch.float32, CPU, LAYERS, 16)
