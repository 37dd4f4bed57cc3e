"""One executor for all scenarios, and what `transformers` generates from the same weights, each prompt alone."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.engine.tokenizer import load_tokenizer
from paceline.exec.executor import ExecutorConfig, ModelExecutor

from .rig import Rig

NEW_TOKENS = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernels", default="auto", help="of the executor, as of paceline serve: auto, off, avx2 ...")


@pytest.fixture(scope="session")
def executor(request: pytest.FixtureRequest) -> ModelExecutor:
    config = ExecutorConfig(
        dtype="float32", block_size=16, num_blocks=1024, max_num_seqs=64, max_model_len=512, threads=1
    )
    kernels = request.config.getoption("--kernels", "auto")  # there when pytest is given this folder
    return ModelExecutor(replace(config, kernels=kernels))


@pytest.fixture(scope="session")
def prompts(executor: ModelExecutor) -> list[list[int]]:
    data = json.loads((Path(__file__).parent / "data" / "prompts.json").read_text("utf-8"))
    tokenizer = load_tokenizer(executor.source.path)
    return [list(tokenizer.encode(prompt)) for prompt in data["prompts"]]


@pytest.fixture(scope="session")
def expected(executor: ModelExecutor, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of `transformers.generate`, one prompt at a time, end-of-sequence ignored."""
    path = executor.source.path
    with pytest.MonkeyPatch.context() as patch:
        for slow in ("GGUFReader", "get_tensor_name_map"):  # which transformers asks for the same again and again
            patch.setattr(gguf, slow, functools.cache(getattr(gguf, slow)))
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    generated = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0
        )
        generated.append(output[0, len(prompt) :].tolist())
    return generated


@pytest.fixture
def rig(executor: ModelExecutor) -> Rig:
    return Rig(executor)
