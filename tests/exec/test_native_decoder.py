"""The native decoder gives the logits transformers gives, however a prompt is cut, batched or paged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.exec.attention.metadata import build_metadata
from paceline.exec.attention.reference import ReferenceAttention
from paceline.exec.config import ExecutorConfig
from paceline.exec.executor import ModelExecutor
from paceline.exec.llama import NativeDecoder
from paceline.exec.loader import load_model

from .plans import PlanBatch
from .random_models import CONFIGS, random_model, save

BLOCK = 4


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request, tmp_path_factory):
    """(transformers model, directory it was saved to)."""
    model = random_model(CONFIGS[request.param]())
    return model, save(model, tmp_path_factory.mktemp(request.param))


def texts(*lengths: int) -> list[list[int]]:
    generator = np.random.default_rng(7)
    return [generator.integers(3, 97, length).tolist() for length in lengths]


def whole_logits(model, text: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([text]), use_cache=False).logits[0].float()


def paged_logits(model, chunks: list[dict[int, int]], batch: PlanBatch) -> dict[int, torch.Tensor]:
    """Run steps of {row: tokens} and return the logits of every token by row."""
    attention = ReferenceAttention(model.dtype, model.device)
    attention.allocate(model.layers, batch.block_table.size, batch.block_size)
    found: dict[int, list[torch.Tensor]] = {}
    for counts in chunks:
        plan = batch.plan(counts)
        tokens = np.concatenate(
            [plan.tokens[r, s : s + c] for r, s, c in zip(plan.rows, plan.starts, plan.counts, strict=True)]
        )
        metadata = build_metadata(plan.starts, plan.counts, plan.block_table[plan.rows], batch.block_size, model.device)
        hidden = model.forward(torch.from_numpy(tokens).long(), attention, metadata)
        logits = model.logits(hidden).split(plan.counts.tolist())
        for row, part in zip(plan.rows.tolist(), logits, strict=True):
            found.setdefault(row, []).append(part)
        batch.computed[plan.rows] += plan.counts
    return {row: torch.cat(parts) for row, parts in found.items()}


def test_logits_equal_transformers_whole_chunked_and_mixed(pair):
    theirs, directory = pair
    ours = load_model(ExecutorConfig(str(directory), dtype="float32", device="cpu"))
    assert isinstance(ours, NativeDecoder)
    prompts = texts(40, 23, 61)
    steps = [
        {0: 40},  # a whole prompt alone
        {1: 7},
        {2: 30, 1: 1},  # chunks and a single token together, not in order of rows
        {1: 14, 2: 1},
        {2: 1, 1: 1},  # single tokens together
        {2: 29},
    ]
    found = paged_logits(ours, steps, PlanBatch(prompts, num_blocks=3 * 16, block_size=BLOCK, max_model_len=64))
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(found[row], whole_logits(theirs, prompt), atol=1e-4, rtol=1e-4)


def test_greedy_tokens_equal_transformers_over_20_steps(pair):
    theirs, directory = pair
    executor = ModelExecutor(
        ExecutorConfig(str(directory), dtype="float32", device="cpu", block_size=BLOCK, num_blocks=64, threads=1)
    )
    prompts = texts(5, 18, 11)
    batch = PlanBatch(prompts, num_blocks=64, block_size=BLOCK, max_model_len=64)
    for _ in range(20):
        plan = batch.plan()
        batch.complete(plan, executor.execute(plan).tokens)
    for row, prompt in enumerate(prompts):
        text = list(prompt)
        for _ in range(20):
            text.append(int(whole_logits(theirs, text)[-1].argmax()))
        assert batch.generated(row) == text[len(prompt) :]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(tmp_path, dtype):
    theirs = random_model(CONFIGS["qwen3"]())
    ours = load_model(ExecutorConfig(str(save(theirs, tmp_path)), dtype=dtype, device="cpu"))
    (prompt,) = texts(30)
    batch = PlanBatch([prompt], num_blocks=16, block_size=BLOCK, max_model_len=64)
    found = paged_logits(ours, [{0: 20}, {0: 10}], batch)[0]
    expected = whole_logits(theirs, prompt)
    assert found.dtype == torch.float32
    assert (found - expected).norm() < 0.05 * expected.norm()


def test_sharded_and_pytorch_checkpoints_give_the_same_logits(tmp_path):
    theirs = random_model(CONFIGS["llama"]())
    (prompt,) = texts(20)
    sharded = save(theirs, tmp_path / "sharded", max_shard_size="10KB")
    assert (sharded / "model.safetensors.index.json").exists()
    pickled = save(theirs, tmp_path / "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), pickled / "pytorch_model.bin")
    for directory in (sharded, pickled):
        ours = load_model(ExecutorConfig(str(directory), dtype="float32", device="cpu"))
        batch = PlanBatch([prompt], num_blocks=16, block_size=BLOCK, max_model_len=64)
        found = paged_logits(ours, [{0: 20}], batch)[0]
        torch.testing.assert_close(found, whole_logits(theirs, prompt), atol=1e-4, rtol=1e-4)


def test_a_config_in_the_older_layout_means_the_same(tmp_path):
    import json

    theirs = random_model(CONFIGS["llama-llama3-rope"]())
    directory = save(theirs, tmp_path)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    path.write_text(json.dumps(config))
    (prompt,) = texts(50)
    ours = load_model(ExecutorConfig(str(directory), dtype="float32", device="cpu"))
    batch = PlanBatch([prompt], num_blocks=16, block_size=BLOCK, max_model_len=64)
    torch.testing.assert_close(
        paged_logits(ours, [{0: 50}], batch)[0], whole_logits(theirs, prompt), atol=1e-4, rtol=1e-4
    )
