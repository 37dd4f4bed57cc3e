"""Drive vLLM's own V1 scheduler with a fake model: the decisions it takes on a replay script, or the time it needs.

Run it with the Python of an environment that has vLLM (made for 0.32); nothing of Paceline is imported.

    python benchmarks/peers/vllm_scheduler.py SCRIPT.json    one JSON object per step, as `paceline replay` prints
    python benchmarks/peers/vllm_scheduler.py --batch FILE   a script per line in (FILE - is standard input, read as it
                                                             comes), {"steps": [...], "summary": {...}} per line out
    python benchmarks/peers/vllm_scheduler.py --time         microseconds of steady decode, one line per batch size

vLLM registers a block when it schedules it. If it then preempts the sequence in the same step (only `priority` can),
the block stays findable although its K/V was never written. Paceline takes such blocks out of the index; so that all
else can be compared, vLLM is made to do it here too, and `unwritten` in the summary counts them. `--as-is` does not.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
logging.disable(logging.WARNING)

import torch  # noqa: E402
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

STALLED_AFTER = 64  # steps in which something waits and nothing moves
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32000,
    "max_position_embeddings": 1 << 20,
    "hidden_act": "silu",
}
SCHEDULER_KEYS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "watermark",
    "scheduler_reserve_full_isl",
)
DEFAULTS = {"block_size": 16, "max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 2048}


class RecordingScheduler(Scheduler):
    """vLLM's scheduler, which also says whom it preempted, and forgets blocks that were never written."""

    as_is = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.victims: list[str] = []
        self.unwritten = 0

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self.victims.append(request.request_id)
        manager = self.kv_cache_manager.coordinator.single_type_managers[0]
        registered = manager.num_cached_block.get(request.request_id, 0)
        written = request.num_computed_tokens // self.block_size
        for block in manager.req_to_blocks[request.request_id][written:registered]:
            self.unwritten += 1
            if not self.as_is:
                self.kv_cache_manager.block_pool._maybe_evict_cached_block(block)
        super()._preempt_request(request, *args, **kwargs)


class Builder:
    """Makes schedulers and requests; what does not depend on the script is made once."""

    def __init__(self, scheduler_class: type[Scheduler]) -> None:
        self.scheduler_class = scheduler_class
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(MODEL))
            self.model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0)
        init_none_hash(sha256)
        self.structured_output: StructuredOutputManager | None = None

    def scheduler(self, config: dict[str, Any]) -> Scheduler:
        config = DEFAULTS | config
        block_size, blocks = config["block_size"], config["num_blocks"] + 1  # vLLM keeps one block for itself
        self.model.max_model_len = config["max_model_len"]
        vllm_config = VllmConfig(
            model_config=self.model,
            cache_config=CacheConfig(
                block_size=block_size, enable_prefix_caching=config.get("enable_prefix_caching", True)
            ),
            scheduler_config=SchedulerConfig(
                is_encoder_decoder=False,
                async_scheduling=False,
                policy=config.get("order", "fcfs"),
                **{key: config[key] for key in SCHEDULER_KEYS if key in config},
            ),
        )
        vllm_config.cache_config.num_gpu_blocks = blocks
        if self.structured_output is None:
            self.structured_output = StructuredOutputManager(vllm_config)
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        scheduler = self.scheduler_class(
            vllm_config=vllm_config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            structured_output_manager=self.structured_output,
            block_size=block_size,
            log_stats=True,
        )
        for key in SCHEDULER_KEYS:  # vLLM adjusts configurations silently; a comparison needs what it asked for
            if key in config and key != "max_model_len":
                assert getattr(scheduler.scheduler_config, key) == config[key], key
        assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == blocks - 1
        return scheduler

    def request(self, spec: dict[str, Any], index: int, scheduler: Scheduler) -> Request:
        prompt = spec.get("prompt")
        if prompt is None:
            prompt = [(index + 1) * 1_000_000 + i for i in range(spec["prompt_len"])]
        caching = scheduler.cache_config.enable_prefix_caching
        return Request(
            request_id=spec["id"],
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=spec["output_len"], ignore_eos=True),
            pooling_params=None,
            arrival_time=spec.get("arrival_time", float(index)),
            priority=spec.get("priority", 0),
            cache_salt=spec.get("cache_salt"),
            block_hasher=get_request_block_hasher(scheduler.block_size, sha256) if caching else None,
        )


def replay(script: dict[str, Any], builder: Builder) -> Iterator[dict[str, Any]]:
    """One dictionary per step, then the summary."""
    config = script["config"]
    scheduler = builder.scheduler(config)
    assert isinstance(scheduler, RecordingScheduler)
    pool = scheduler.kv_cache_manager.block_pool
    specs = list(enumerate(script["requests"]))
    outputs = {spec["id"]: made_up_outputs(spec, index) for index, spec in specs}
    coming = sorted(specs, key=lambda item: item[1].get("arrival_step", 0))
    preemptions = tokens = finished_count = still = step = 0
    hits = resumed_hits = 0
    while step < config.get("max_steps", 100_000) and still < STALLED_AFTER:
        while coming and coming[0][1].get("arrival_step", 0) <= step:
            index, spec = coming.pop(0)
            scheduler.add_request(builder.request(spec, index, scheduler))
        aborted = abort(scheduler, script, step, "before")
        if not scheduler.has_unfinished_requests():
            if not coming:
                break
            if not aborted:
                step = coming[0][1]["arrival_step"]
                continue
        before = {request.request_id for request in scheduler.running}
        scheduler.victims = []
        output = scheduler.schedule()
        counts = output.num_scheduled_tokens
        entered = [id for id in counts if id not in before]
        line: dict[str, Any] = {
            "step": step,
            "scheduled": [[id, count] for id, count in counts.items()],
            "new": [id for id in entered if not scheduler.requests[id].num_preemptions],
            "resumed": [id for id in entered if scheduler.requests[id].num_preemptions],
            "cached": {id: scheduler.requests[id].num_computed_tokens - counts[id] for id in entered},
            "preempted": [[id, "recompute"] for id in scheduler.victims],
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "free_blocks": pool.get_num_free_blocks(),
            "blocks": block_tables(scheduler),
        }
        sampled = sample(scheduler, counts, outputs)
        aborted += abort(scheduler, script, step, "mid")
        alive = [id for id in counts if id in scheduler.requests]
        result = scheduler.update_from_output(output, sampled)
        line["finished"] = [id for id in alive if id not in scheduler.requests]
        line["aborted"] = aborted
        line["free_blocks_end"] = pool.get_num_free_blocks()
        stats = next(iter(result.values())).scheduler_stats.prefix_cache_stats
        hits, resumed_hits = hits + stats.hits, resumed_hits + stats.preempted_hits
        yield line
        preemptions += len(scheduler.victims)
        tokens += sum(counts.values())
        finished_count += len(line["finished"])
        still = 0 if counts or scheduler.victims or aborted else still + 1
        step += 1
    summary: dict[str, Any] = {
        "steps": step,
        "scheduled_tokens": tokens,
        "finished": finished_count,
        "preemptions": preemptions,
        "cache_hit_tokens": hits,
        "resumed_hit_tokens": resumed_hits,
        "unwritten": scheduler.unwritten,
    }
    if still >= STALLED_AFTER:
        summary["stalled"] = True
    yield {"summary": summary}


def block_tables(scheduler: Scheduler) -> dict[str, list[int]]:
    """Block ids of each running request, numbered from 0 (vLLM's own block has number 0 there)."""
    tables = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
    return {request.request_id: [b.block_id - 1 for b in tables[request.request_id]] for request in scheduler.running}


def made_up_outputs(spec: dict[str, Any], index: int) -> list[int]:
    """The tokens the fake model emits: the script's, then ones no other request has."""
    given = list(spec.get("output_tokens") or ())
    return given + [(index + 1) * 1_000_000 + 500_000 + i for i in range(len(given), spec["output_len"])]


def abort(scheduler: Scheduler, script: dict[str, Any], step: int, when: str) -> list[str]:
    """Abort what the script says is to be aborted now and is still there."""
    ids = [
        spec["id"]
        for spec in script["requests"]
        if spec.get("abort_step") == step
        and spec.get("abort_when", "before") == when
        and spec["id"] in scheduler.requests
    ]
    for id in ids:
        scheduler.finish_requests(id, RequestStatus.FINISHED_ABORTED)
    return ids


def sample(scheduler: Scheduler, counts: dict[str, int], outputs: dict[str, list[int]]) -> ModelRunnerOutput:
    """What a model runner returns: a token for each request whose last known token was computed."""
    tokens: list[list[int]] = []
    for id in counts:
        request = scheduler.requests[id]
        whole = request.num_computed_tokens == request.num_tokens
        tokens.append([outputs[id][request.num_output_tokens]] if whole else [])
    ids = list(counts)
    return ModelRunnerOutput(req_ids=ids, req_id_to_index={id: i for i, id in enumerate(ids)}, sampled_token_ids=tokens)


def time_decode(builder: Builder, running: int, steps: int) -> dict[str, float]:
    """Steady decode of `running` sequences whose block edges are spread evenly over the steps; microseconds."""
    block_size, prompt = 16, 64
    scheduler = builder.scheduler(
        {
            "num_blocks": running * (-(-(prompt + 16 + steps + 64) // block_size) + 1),
            "max_num_seqs": running,
            "max_num_batched_tokens": max(8192, running),
            "max_model_len": 8192,
        }
    )
    specs = [{"id": f"r{i}", "prompt_len": prompt + i % block_size, "output_len": steps + 1000} for i in range(running)]
    for index, spec in enumerate(specs):
        scheduler.add_request(builder.request(spec, index, scheduler))
    outputs = {spec["id"]: [7] * (steps + 1000) for spec in specs}
    schedule: list[float] = []
    update: list[float] = []
    warm = 0
    while len(schedule) < steps:
        start = time.perf_counter_ns()
        output = scheduler.schedule()
        middle = time.perf_counter_ns()
        sampled = sample(scheduler, output.num_scheduled_tokens, outputs)
        resume = time.perf_counter_ns()
        scheduler.update_from_output(output, sampled)
        end = time.perf_counter_ns()
        if len(output.num_scheduled_tokens) == output.total_num_scheduled_tokens == running:
            warm += 1
        if warm > 20:
            schedule.append((middle - start) / 1e3)
            update.append((end - resume) / 1e3)
    both = [a + b for a, b in zip(schedule, update, strict=True)]
    return {
        "running": running,
        "steps": steps,
        "schedule_p50_us": round(statistics.median(schedule), 1),
        "update_p50_us": round(statistics.median(update), 1),
        "p50_us": round(statistics.median(both), 1),
        "min_us": round(min(both), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", nargs="?", help="replay script (JSON); with --batch, one per line")
    parser.add_argument("--batch", action="store_true", help="read a script per line, print a result per line")
    parser.add_argument("--as-is", action="store_true", help="leave blocks findable that were never written")
    parser.add_argument("--time", action="store_true", help="time steady decode instead")
    parser.add_argument("--running", type=int, nargs="*", default=[1, 32, 256, 1024], help="batch sizes to time")
    parser.add_argument("--steps", type=int, default=320, help="steps to time per batch size")
    arguments = parser.parse_args()
    if arguments.time:
        builder = Builder(Scheduler)
        for running in arguments.running:
            gc.collect()
            print(json.dumps(time_decode(builder, running, arguments.steps)), flush=True)
        return 0
    if arguments.script is None:
        parser.error("a script is needed, or --time")
    RecordingScheduler.as_is = arguments.as_is
    builder = Builder(RecordingScheduler)
    if not arguments.batch:
        stalled = False
        for line in replay(json.loads(Path(arguments.script).read_text()), builder):
            stalled |= line.get("summary", {}).get("stalled", False)
            print(json.dumps(line))
        return int(stalled)
    with sys.stdin if arguments.script == "-" else open(arguments.script) as file:
        for text in iter(file.readline, ""):
            *steps, last = replay(json.loads(text), builder)
            print(json.dumps({"steps": steps, "summary": last["summary"]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
