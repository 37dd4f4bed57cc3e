"""transformers' own continuous batching, on a tiny model, takes the same steps as the rows named after it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
import torch

from paceline.core.replay import replay

transformers = pytest.importorskip("transformers", minversion="5.24")
pytest.importorskip("transformers.generation.continuous_batching.offloading_manager")

PAGE = 4
SCHEDULERS = {"hf-fifo": "fifo", "hf-prefill-first": "prefill_first"}
Steps = list[dict[str, int]]  # request id -> tokens, in the order of the batch


@dataclass(frozen=True)
class Load:
    """`requests`: (step of arrival, prompt tokens, tokens to generate)."""

    pages: int
    tokens: int
    seqs: int
    margin: float
    requests: list[tuple[int, int, int]]


def random_load(seed: int) -> Load:
    random = Random(seed)
    pages = random.randint(5, 14)
    requests = []
    for _ in range(random.randint(2, 9)):
        prompt = random.randint(1, min(30, PAGE * pages - 2))
        requests.append((random.randint(0, 8), prompt, random.randint(1, min(14, PAGE * pages - prompt))))
    tokens = random.choice([5, 8, 16, 64])
    return Load(
        pages=pages,
        tokens=tokens,
        seqs=min(16, tokens),
        margin=random.choice([0.0, 0.0, 0.15, 0.4, 0.7]),
        requests=sorted(requests),
    )


@pytest.fixture(scope="module")
def model() -> Iterator[transformers.PreTrainedModel]:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()  # every processor that goes away collects garbage, and nothing made so far is any
    yield model
    gc.unfreeze()
    torch.set_num_threads(threads)


def theirs(model: transformers.PreTrainedModel, load: Load, scheduler: str) -> tuple[Steps, dict[str, list[int]]]:
    """The steps transformers takes, and the tokens it generates."""
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    manager = model.init_continuous_batching(
        generation_config=transformers.GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1),
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=load.pages,
            max_batch_tokens=load.tokens,
            max_requests_per_batch=load.seqs,
            allow_block_sharing=False,
            use_async_batching=False,
            use_cuda_graph=False,
            scheduler_type=scheduler,
            safety_margin=load.margin,
        ),
    )
    processor = manager.batch_processor = manager._create_batch_processor()
    assert processor.cache.num_blocks == load.pages, "a block of this model is not a sector of its own"
    random, steps, waiting = Random(1), [], list(enumerate(load.requests))
    while waiting or processor.has_pending_requests():
        if not processor.has_pending_requests():
            steps += [{}] * (waiting[0][1][0] - len(steps))
        while waiting and waiting[0][1][0] <= len(steps):
            number, (_, prompt, output) = waiting.pop(0)
            tokens = [random.randrange(64) for _ in range(prompt)]
            manager.add_request(tokens, request_id=f"r{number}", max_new_tokens=output)
        assert processor.prepare_next_batch(), f"stuck after {steps}"
        steps.append({one.state.request_id: one.query_length for one in processor.inputs_and_outputs.requests_in_batch})
        manager._generation_step()
        processor.update_batch()
    outputs = {}
    while not manager.output_router.output_queue.empty():
        result = manager.output_router.output_queue.get()
        outputs[result.request_id] = result.generated_tokens
    return steps, outputs


def ours(load: Load, discipline: str) -> tuple[Steps, int]:
    """The steps the row takes, and how often it preempted."""
    config = {
        "discipline": discipline,
        "block_size": PAGE,
        "num_blocks": load.pages,
        "max_num_batched_tokens": load.tokens,
        "max_num_seqs": load.seqs,
        "max_model_len": 256,
        "enable_prefix_caching": False,
        "safety_margin": load.margin,
    }
    requests = [
        {"id": f"r{number}", "arrival_step": step, "prompt_len": prompt, "output_len": output}
        for number, (step, prompt, output) in enumerate(load.requests)
    ]
    *lines, last = replay({"config": config, "requests": requests})
    steps: Steps = []
    for line in lines:
        steps += [{}] * (line["step"] - len(steps))
        steps.append(dict(line["scheduled"]))
    return steps, last["summary"]["preemptions"]


@pytest.mark.slow
@pytest.mark.parametrize("discipline", SCHEDULERS)
def test_transformers_takes_the_same_steps(model: transformers.PreTrainedModel, discipline: str) -> None:
    preemptions = cut = 0
    for seed in range(20):
        load = random_load(seed)
        expected, outputs = theirs(model, load, SCHEDULERS[discipline])
        steps, preempted = ours(load, discipline)
        assert [list(step.items()) for step in steps] == [list(step.items()) for step in expected], f"{seed}: {load}"
        assert {name: len(tokens) for name, tokens in outputs.items()} == {
            f"r{number}": output for number, (_, _, output) in enumerate(load.requests)
        }
        preemptions += preempted
        cut += any(sum(step.values()) == load.tokens for step in steps)
    assert preemptions > 10 and cut > 5, "the scripts do not get there"
