"""Perplexity of a text under several ways to hold weights and K/V, to see what rounding costs.

    python benchmarks/perplexity.py
    python benchmarks/perplexity.py --model DIRECTORY --variants bfloat16/none,bfloat16/int8,bfloat16/int4

The text is cut into windows, which are computed as prompts by the executor that serves. The default text: Queries 9 to
24 of Isaac Newton's Opticks (1704, in the public domain). Variants are DTYPE/QUANTIZATION[/KV]; with `from-plain` in
front, the weights are first widened to float32 and saved, as a checkpoint that never was quantised.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path

import numpy as np

from paceline.core.params import SamplingParams
from paceline.core.plan import Entered, StepPlan
from paceline.engine.tokenizer import load_tokenizer
from paceline.exec.executor import ExecutorConfig, ModelExecutor
from paceline.exec.gguf_file import read_gguf
from paceline.exec.gguf_weights import GGUFWeights
from paceline.exec.source import resolve

TEXT = Path(__file__).parent.parent / "tests" / "data" / "opticks.txt"
VARIANTS = (
    "float32/none,bfloat16/none,float32/keep,bfloat16/keep,bfloat16/none/int8,bfloat16/keep/int8,"
    "from-plain/bfloat16/int8,from-plain/bfloat16/int4"
)
PARAMS = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)


def perplexity(executor: ModelExecutor, tokens: list[int], window: int) -> float:
    """e to the mean negative log-probability of each token but the first of its window."""
    total, count = 0.0, 0
    blocks = np.arange(-(-window // executor.block_size), dtype=np.int32)[None]
    for first in range(0, len(tokens), window):
        piece = np.array([tokens[first : first + window]], np.int32)
        length = piece.shape[1]
        if length < 2:
            continue
        one = np.zeros(1, np.int32)
        plan = StepPlan(
            step=1,
            rows=one,
            starts=one,
            counts=np.array([length], np.int32),
            samples=np.zeros(1, np.bool_),
            tokens=piece,
            block_table=blocks,
            prompt_lengths=np.array([length], np.int32),
            entered=[Entered(0, "text", PARAMS, 0, length)],
        )
        result = executor.execute(plan)
        assert result.prompt_logprobs is not None
        total -= sum(entry.logprob for _, entry in result.prompt_logprobs[0])
        count += length - 1
    return math.exp(total / count)


def as_plain_checkpoint(model: str, directory: Path) -> str:
    """The model in a directory of its own, its weights as float32 safetensors."""
    from safetensors.torch import save_file

    source = resolve(model)
    if source.kind != "gguf":
        return model
    weights = GGUFWeights(read_gguf(source.path))
    tensors = {name: weights.tensor(name, weights.shape(name)).contiguous() for name in sorted(weights.names())}
    save_file(tensors, directory / "model.safetensors")
    config = {**source.config, "torch_dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    return str(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--variants", default=VARIANTS)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tokens = list(load_tokenizer(resolve(options.model).path).encode(options.text.read_text("utf-8")))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        plain = ""
        for variant in options.variants.split(","):
            dtype, quantization, *kv = variant.removeprefix("from-plain/").split("/")
            model = options.model
            if variant.startswith("from-plain/"):
                model = plain = plain or as_plain_checkpoint(options.model, Path(folder))
            executor = ModelExecutor(
                ExecutorConfig(
                    model,
                    dtype=dtype,
                    quantization=quantization,
                    kv_cache_dtype=kv[0] if kv else "auto",
                    num_blocks=-(-options.window // 16),
                    max_num_seqs=1,
                    threads=options.threads,
                )
            )
            begin = time.perf_counter()
            found = perplexity(executor, tokens, options.window)
            formats = getattr(executor.model, "weight_formats", dtype)
            results.append({"variant": variant, "weights": formats, "perplexity": found})
            results[-1]["seconds"] = time.perf_counter() - begin
    if options.json:
        print(json.dumps(results, indent=1))
        return
    print(f"{len(tokens):,} tokens in windows of {options.window:,}")
    print(f"{'variant':28} {'weights':16} {'perplexity':>10} {'to the first':>12} {'seconds':>8}")
    for row in results:
        ratio = row["perplexity"] / results[0]["perplexity"]
        print(f"{row['variant']:28} {row['weights']:16} {row['perplexity']:10.4f} {ratio:12.5f} {row['seconds']:8.1f}")


if __name__ == "__main__":
    main()
