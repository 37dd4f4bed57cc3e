"""Milliseconds per step of the executor: decode at several batch sizes, and prefill, kernels on and off in turn.

    python benchmarks/decode_step.py --model smollm2-135m --batches 1,8,32 --context 512 --prefill 2048 --json
    python benchmarks/decode_step.py --kernels auto/none,auto/keep,auto/keep/int8

The variants (values of --kernels, --quantization and --kv-cache-dtype) take turns in one process, so that ratios hold
on a machine that is not quiet.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from paceline.core.params import SamplingParams
from paceline.core.plan import Entered, StepPlan
from paceline.exec.executor import ExecutorConfig, ModelExecutor

GREEDY = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)


class Load:
    """Steps of fixed shape on one executor. The K/V read are whatever is there: values do not change the speed."""

    def __init__(self, executor: ModelExecutor, rows: int, start: int, count: int) -> None:
        self.executor, self.rows, self.start, self.count = executor, rows, start, count
        per_row = -(-(start + count) // executor.block_size)
        table = np.random.default_rng(0).permutation(executor.num_blocks)[: rows * per_row].reshape(rows, per_row)
        self.table = table.astype(np.int32)
        self.tokens = np.random.default_rng(1).integers(3, executor.vocab_size, (rows, start + count)).astype(np.int32)
        self.step(enter=True)

    def step(self, enter: bool = False) -> tuple[float, float]:
        """Milliseconds one step took: by the clock, and of processor time, all threads together."""
        entered = [Entered(row, str(row), GREEDY, row, self.start) for row in range(self.rows)] if enter else []
        plan = StepPlan(
            step=1,
            rows=np.arange(self.rows, dtype=np.int32),
            starts=np.full(self.rows, self.start, np.int32),
            counts=np.full(self.rows, self.count, np.int32),
            samples=np.ones(self.rows, np.bool_),
            tokens=self.tokens,
            block_table=self.table,
            prompt_lengths=np.full(self.rows, self.start, np.int32),
            entered=entered,
        )
        begin, used = time.perf_counter(), time.process_time()
        self.executor.execute(plan)
        return (time.perf_counter() - begin) * 1e3, (time.process_time() - used) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--kernels", default="off,auto", help="variants KERNELS[/QUANTIZATION[/KV]], in turn; ratios are to the first"
    )
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", type=int, default=2048, help="tokens of the prefill step; 0: none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="steps of one variant before the next has its turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shapes = [(f"decode x {rows}", int(rows), options.context, 1) for rows in options.batches.split(",")]
    if options.prefill:
        shapes.append((f"prefill {options.prefill}", 1, 0, options.prefill))
    variants = options.kernels.split(",")
    executors = {
        name: ModelExecutor(
            ExecutorConfig(
                options.model,
                dtype=options.dtype,
                **dict(zip(("kernels", "quantization", "kv_cache_dtype"), name.split("/"), strict=False)),
                threads=options.threads,
                max_num_seqs=max(rows for _, rows, _, _ in shapes),
                num_blocks=sum(rows * -(-(start + count) // 16) for _, rows, start, count in shapes),
            )
        )
        for name in variants
    }
    results = []
    for label, rows, start, count in shapes:
        loads = {name: Load(executor, rows, start, count) for name, executor in executors.items()}
        steps = options.steps if count == 1 else 1
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        for _ in range(options.rounds):
            for name in variants:
                times[name] += [loads[name].step() for _ in range(steps)]
        for name in variants:
            clock, cpu = np.array(times[name]).T
            first = np.array(times[variants[0]]).T[0]
            results.append(
                {
                    "step": label,
                    "kernels": name,
                    "best_ms": clock.min(),
                    "median_ms": float(np.median(clock)),
                    "cpu_ms": cpu.min(),
                    "tokens_per_second": rows * count / clock.min() * 1e3,
                    "times_faster": first.min() / clock.min(),
                }
            )
    if options.json:
        print(json.dumps(results, indent=1))
        return
    columns = {"best_ms": 2, "median_ms": 2, "cpu_ms": 2, "tokens_per_second": 0, "times_faster": 2}
    print(f"{'step':16} {'kernels':16}" + "".join(f"{name.replace('_', ' '):>18}" for name in columns))
    for row in results:
        numbers = "".join(f"{row[name]:18,.{digits}f}" for name, digits in columns.items())
        print(f"{row['step']:16} {row['kernels']:16}" + numbers)


if __name__ == "__main__":
    main()
