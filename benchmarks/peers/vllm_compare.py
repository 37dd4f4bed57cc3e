"""Compare Paceline's `vllm` discipline with vLLM's own scheduler, decision by decision, on random replay scripts.

    python benchmarks/peers/vllm_compare.py --vllm-python /path/to/vllm-env/bin/python --scripts 1000 --seed 0

Every step's decisions must be equal: who runs in which order and with how many tokens, what the cache gave, victims,
queues, free blocks, and every block id. A script that differs is made smaller as long as it differs, printed with the
first differing step, and kept in `--keep` for `paceline replay`. The exit status is 1 if any differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Script = dict[str, Any]
Line = dict[str, Any]

COMPARED = (
    "scheduled", "new", "resumed", "cached", "preempted", "running", "waiting", "free_blocks", "blocks",
    "finished", "aborted", "free_blocks_end",
)  # fmt: skip
COMPARED_TOTALS = ("scheduled_tokens", "preemptions", "cache_hit_tokens", "resumed_hit_tokens", "stalled")


class Vllm:
    """vLLM's scheduler in its own environment: scripts in, results out, one process."""

    def __init__(self, python: str) -> None:
        driver = Path(__file__).with_name("vllm_scheduler.py")
        self.process = subprocess.Popen(
            [python, str(driver), "--batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def __call__(self, script: Script) -> tuple[list[Line], Line]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(script) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("vLLM's process ended; its messages are above")
        result = json.loads(answer)
        return result["steps"], result["summary"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def paceline(script: Script) -> tuple[list[Line], Line]:
    from paceline.core.replay import replay

    *steps, last = replay(script, "vllm", blocks=True)
    return steps, last["summary"]


def difference(script: Script, vllm: Vllm) -> tuple[str, Counter[str]] | tuple[None, Counter[str]]:
    """What differs first, in words, or None; with counts of what the script exercised."""
    theirs, their_totals = vllm(script)
    seen = Counter({key: their_totals[key] for key in ("preemptions", "cache_hit_tokens", "unwritten")})
    seen["steps"] = len(theirs)
    try:
        ours, our_totals = paceline(script)
    except Exception as error:
        return f"paceline raised {type(error).__name__}: {error}", seen
    if refused := {id: reason for line in ours for id, reason in line["refused"].items()}:
        return f"paceline refused {refused}", seen
    theirs, ours = ([line for line in lines if happened(line)] for lines in (theirs, ours))
    for their, our in zip(theirs, ours, strict=False):
        if their["step"] != our["step"]:
            return f"after the same steps vllm goes on with step {their['step']}, paceline with {our['step']}", seen
        if keys := [key for key in COMPARED if their[key] != our[key]]:
            shown = "\n".join(f"    {key}: vllm {their[key]}\n    {' ' * len(key)}  ours {our[key]}" for key in keys)
            return f"step {their['step']}:\n{shown}", seen
    if len(theirs) != len(ours):
        return f"vllm takes {len(theirs)} steps, paceline {len(ours)}", seen
    for key in COMPARED_TOTALS:
        if their_totals.get(key) != our_totals.get(key):
            return f"{key} in total: vllm {their_totals.get(key)}, ours {our_totals.get(key)}", seen
    return None, seen


def happened(line: Line) -> bool:
    return any(line[key] for key in ("scheduled", "running", "waiting", "preempted", "finished"))


def smaller(script: Script, vllm: Vllm) -> Script:
    """The script with requests left out and lengths halved, as long as it still differs."""
    changed = True
    while changed:
        changed = False
        for candidate in reductions(script):
            if difference(candidate, vllm)[0] is not None:
                script, changed = candidate, True
                break
    return script


def reductions(script: Script) -> Iterator[Script]:
    requests = script["requests"]
    size = len(requests) // 2
    while size:
        for start in range(0, len(requests), size):
            if rest := requests[:start] + requests[start + size :]:
                yield script | {"requests": rest}
        size //= 2
    for index, request in enumerate(requests):
        options = [{key: value for key, value in request.items() if key != out} for out in ("abort_step", "cache_salt")]
        options = [option for option in options if option != request]
        if request["output_len"] > 1:
            options.append(request | {"output_len": request["output_len"] // 2})
        if len(request["prompt"]) > 1:
            options.append(request | {"prompt": request["prompt"][: len(request["prompt"]) // 2]})
        for option in options:
            yield script | {"requests": [*requests[:index], option, *requests[index + 1 :]]}
    for key in ("watermark", "long_prefill_token_threshold", "scheduler_reserve_full_isl", "enable_prefix_caching"):
        if key in script["config"]:
            yield script | {"config": {name: value for name, value in script["config"].items() if name != key}}


def random_script(seed: int) -> Script:
    """A script whose every request could run alone; the seed says which features meet in it."""
    draw = random.Random(seed)
    block_size = draw.choice([1, 2, 3, 4, 4, 5, 8, 8, 16])
    max_model_len = draw.choice([32, 64, 128, 256])
    max_num_seqs = draw.choice([1, 2, 3, 4, 6, 8, 16])
    config: dict[str, Any] = {"block_size": block_size, "max_num_seqs": max_num_seqs, "max_model_len": max_model_len}
    config["order"] = draw.choice(["fcfs", "priority"])
    config["max_num_batched_tokens"] = max(max_num_seqs, draw.choice([1, 4, 8, 16, 17, 32, 64, 512]))
    if draw.random() < 0.15:
        config["enable_chunked_prefill"] = False
        config["max_num_batched_tokens"] = max_model_len + draw.choice([0, 1, 16, 64])
    if draw.random() < 0.3:
        config["long_prefill_token_threshold"] = draw.randint(1, 32)
    if draw.random() < 0.3:
        config["watermark"] = draw.choice([0.01, 0.05, 0.1, 0.25, 0.5, 0.9])
    if draw.random() < 0.35:
        config["scheduler_reserve_full_isl"] = False
    if draw.random() < 0.15:
        config["enable_prefix_caching"] = False
    requests = random_requests(draw, block_size, max_model_len)
    needed = max(
        -(-min(len(request["prompt"]) + request["output_len"], max_model_len) // block_size) for request in requests
    )
    config["num_blocks"] = needed + draw.choice([0, 0, 1, needed // 2, needed, 2 * needed, 10 * needed])
    return {"config": config, "requests": requests}


def random_requests(draw: random.Random, block_size: int, max_model_len: int) -> list[dict[str, Any]]:
    longest = max_model_len - 1
    vocabulary = draw.choice([2, 1000])
    stems = [tokens(draw, draw.randint(1, longest), vocabulary) for _ in range(draw.randint(1, 3))]
    sharing, salts, ties = draw.random(), draw.random() < 0.2, draw.random() < 0.3
    last_arrival = draw.choice([0, 0, 5, 20, 60])
    most_output = draw.choice([1, 8, 32, 100])
    requests: list[dict[str, Any]] = []
    for index in range(draw.randint(1, 20)):
        if draw.random() >= sharing:
            prompt = tokens(draw, draw.randint(1, longest), vocabulary)
        else:
            prompt = related_prompt(draw, stems, requests, block_size, vocabulary)
        prompt = prompt[: draw.choice([longest, longest // 2 or 1])]
        request: dict[str, Any] = {
            "id": f"{draw.choice('abc')}{index}",
            "prompt": prompt,
            "output_len": (length := draw.randint(1, most_output)),
            "output_tokens": tokens(draw, length, vocabulary),
            "priority": draw.randint(0, 3),
            "arrival_step": draw.randint(0, last_arrival),
        }
        if ties:
            arrival = float(draw.randint(0, 2))
            # Of equals in both another yields here, on purpose: in vLLM they may evict each other for ever.
            taken = {(other["priority"], other["arrival_time"]) for other in requests}
            while (request["priority"], arrival) in taken:
                arrival += 1 / 64
            request["arrival_time"] = arrival
        if salts and draw.random() < 0.5:
            request["cache_salt"] = draw.choice(["x", "y"])
        if draw.random() < 0.15:
            request["abort_step"] = request["arrival_step"] + draw.randint(0, 20)
            request["abort_when"] = draw.choice(["before", "mid"])
        requests.append(request)
    return requests


def related_prompt(
    draw: random.Random, stems: list[list[int]], requests: list[dict[str, Any]], block_size: int, vocabulary: int
) -> list[int]:
    """A prompt that shares a beginning: a stem's, a twin's, or that of a conversation that goes on."""
    kind = draw.choice(["stem", "stem cut at a block", "twin", "conversation"])
    if kind in ("twin", "conversation") and requests:
        other = draw.choice(requests)
        if kind == "twin":
            return list(other["prompt"])
        said = other["output_tokens"][: draw.randint(0, other["output_len"])]
        return other["prompt"] + said + tokens(draw, draw.randint(0, 2 * block_size), vocabulary)
    stem = draw.choice(stems)
    if kind == "stem":
        return stem[: draw.randint(1, len(stem))] + tokens(draw, draw.randint(0, 2 * block_size), vocabulary)
    cut = stem[: max(1, draw.randint(0, len(stem) // block_size)) * block_size]
    return cut + tokens(draw, draw.choice([0, 0, 1, block_size]), vocabulary)


def tokens(draw: random.Random, count: int, vocabulary: int) -> list[int]:
    return [draw.randrange(vocabulary) for _ in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", nargs="*", help="compare these scripts instead of random ones")
    parser.add_argument("--vllm-python", required=True, help="Python of an environment with vLLM")
    parser.add_argument("--scripts", type=int, default=200, help="how many random scripts")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first; the others follow")
    parser.add_argument("--keep", type=Path, help="folder for the scripts that differ, made as small as possible")
    parser.add_argument("--stop-after", type=int, default=5, help="stop when so many scripts differ")
    arguments = parser.parse_args()
    vllm = Vllm(arguments.vllm_python)
    if arguments.script:
        named = [(path, json.loads(Path(path).read_text())) for path in arguments.script]
    else:
        seeds = range(arguments.seed, arguments.seed + arguments.scripts)
        named = [(f"seed {seed}", random_script(seed)) for seed in seeds]
    differing, total = 0, Counter[str]()
    started = time.monotonic()
    for name, script in named:
        found, seen = difference(script, vllm)
        total += seen
        total["scripts"] += 1
        if found is None:
            continue
        differing += 1
        small = smaller(script, vllm)
        print(f"{name} differs: {difference(small, vllm)[0]}\n    {json.dumps(small)}\n", flush=True)
        if arguments.keep:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            (arguments.keep / f"{name.replace(' ', '-').replace('/', '-')}.json").write_text(json.dumps(small))
        if differing >= arguments.stop_after:
            break
    vllm.close()
    print(f"{differing} of {total.pop('scripts')} scripts differ; {dict(total)}; {time.monotonic() - started:.0f} s")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
