"""The native kernels against plain torch, in every instruction set this machine has."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.errors import ConfigError
from paceline.exec.attention import LayerShape
from paceline.exec.attention.cpu import CpuAttention
from paceline.exec.attention.metadata import build_metadata
from paceline.exec.attention.reference import ReferenceAttention
from paceline.exec.executor import ExecutorConfig, ModelExecutor
from paceline.exec.native.library import INSTRUCTION_SETS, choose_kernels, prove
from paceline.exec.native.packed import PackedLinear

from .plans import PlanBatch
from .random_models import CONFIGS, random_model, save

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def runs_here(name: str) -> bool:
    try:
        return choose_kernels(name, CPU).kernels is not None
    except ConfigError:
        return False


HERE = [name for name in INSTRUCTION_SETS if runs_here(name)]


@pytest.fixture(scope="module", params=HERE or [pytest.param(None, marks=pytest.mark.skip("no kernels here"))])
def kernels(request):
    return choose_kernels(request.param, CPU).kernels


def near(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, least: float = 0.0) -> None:
    assert got.shape == expected.shape
    error = (got.double() - expected.double()).norm() / expected.double().norm()
    assert error < max(TOLERANCE[dtype], least), f"off by {float(error):.2g} of its size"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 32), (3, 96, 80), (13, 50, 100), (200, 130, 48)])
def test_a_packed_linear_map_is_the_plain_one(kernels, dtype, rows, inputs, outputs):
    torch.manual_seed(rows)
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    hidden = torch.randn(rows, inputs).to(dtype)
    packed = PackedLinear(kernels, [weight], bias)
    expected = torch.nn.functional.linear(hidden.double(), weight.double(), bias.double())
    near(packed.wide(hidden), expected, torch.float32)
    values, places = packed.largest(hidden)
    assert torch.equal(values, packed.wide(hidden).max(-1).values)
    assert torch.equal(places, packed.wide(hidden).argmax(-1))
    assert torch.equal(packed.rows(torch.tensor([outputs - 1, 0])), weight[[outputs - 1, 0]])


def test_stacked_and_paired_matrices_keep_their_order(kernels):
    torch.manual_seed(0)
    gate, up = torch.randn(48, 20), torch.randn(48, 20)
    hidden, bias = torch.randn(5, 20), torch.randn(96)
    expected = torch.nn.functional.linear(hidden, torch.cat((gate, up)), bias)
    near(PackedLinear(kernels, [gate, up], bias)(hidden), expected, torch.float32)
    near(PackedLinear(kernels, [gate, up], bias, paired=True)(hidden), expected, torch.float32)


def test_a_row_is_computed_the_same_in_any_company(kernels):
    torch.manual_seed(0)
    packed = PackedLinear(kernels, [torch.randn(64, 128)])
    hidden = torch.randn(150, 128)
    together = packed(hidden)
    for count in (1, 2, 7, 12, 13, 97):
        assert torch.equal(packed(hidden[:count]), together[:count])


def test_the_largest_is_the_first_of_equals_and_nan_is_largest(kernels):
    weight = torch.zeros(96, 2)
    weight[[7, 8, 40], 0] = 5.0
    weight[50, 1] = math.nan
    packed = PackedLinear(kernels, [weight])
    assert packed.largest(torch.tensor([[1.0, 0.0]]))[1].tolist() == [50]  # 0 * NaN
    weight[50, 1] = 0.0
    packed = PackedLinear(kernels, [weight])
    values, places = packed.largest(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert (values.tolist(), places.tolist()) == ([5.0, 0.0], [7, 0])


STEPS = [
    # starts, counts, block size, kv heads, shared, key size, value size, window, soft cap
    ([0], [1], 16, 1, 1, 64, 64, None, None),
    ([700, 3, 255, 256, 15], [1, 1, 1, 1, 1], 16, 3, 3, 64, 64, None, None),
    ([0, 100, 40, 600], [37, 129, 1, 2], 16, 2, 4, 64, 64, None, None),
    ([0, 100, 40, 600], [90, 60, 1, 1], 32, 2, 2, 80, 96, 50, None),
    ([30, 290, 0], [20, 1, 33], 16, 2, 1, 128, 128, 5, 3.0),
    ([300, 20], [1, 9], 64, 1, 8, 256, 256, None, 2.0),
    ([0, 17], [19, 1], 16, 2, 2, 8, 8, 7, None),
    ([270, 17], [3, 1], 16, 1, 71, 64, 64, None, None),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("step", STEPS, ids=range(len(STEPS)))
def test_attention_is_the_references(kernels, dtype, step):
    compare_with_the_reference(kernels, dtype, step, None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("step", STEPS[1:7], ids=range(6))
def test_attention_over_8_bits_is_the_references_over_the_same_rounded_numbers(kernels, dtype, step):
    compare_with_the_reference(kernels, dtype, step, torch.int8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kv_dtype", [None, torch.int8], ids=str)
def test_attention_follows_scores_that_grow_from_chunk_to_chunk(kernels, dtype, kv_dtype):
    compare_with_the_reference(
        kernels, dtype, ([0, 290, 600], [400, 20, 1], 16, 2, 3, 64, 64, None, None), kv_dtype, 12.0
    )


def rounded_to_8_bits(numbers: torch.Tensor) -> torch.Tensor:
    """As K/V in int8 hold them: [tokens, heads, size], a scale by token and head."""
    most = numbers.float().abs().amax(-1, keepdim=True)
    return ((numbers.double() * (127 / most).double()).round() * (most / 127)).float()


def compare_with_the_reference(kernels, dtype, step, kv_dtype, growth=1.0):
    """`growth`: how much larger the last key of a step is than the first."""
    starts, counts, size, kv_heads, shared, key_size, value_size, window, softcap = step
    starts, counts = np.array(starts, np.int32), np.array(counts, np.int32)
    per_row = -(-(starts + counts) // size)
    pool = np.random.default_rng(1).permutation(int(per_row.sum()) + 2)
    table = np.full((len(counts), per_row.max()), pool[-1], np.int32)
    ends = per_row.cumsum()
    for row, (blocks, end) in enumerate(zip(per_row, ends, strict=True)):
        table[row, :blocks] = pool[end - blocks : end]
    layers = [LayerShape(kv_heads, key_size, value_size)]
    ours, reference = CpuAttention(kernels, dtype, kv_dtype), ReferenceAttention(torch.float32, CPU)
    for attention in (ours, reference):
        attention.allocate(layers, len(pool), size)
    for cache in ours.tensors():  # what no row wrote must reach no row
        cache.fill_(math.nan if kv_dtype is None else -1)  # scales of -1 bytes are NaN
    torch.manual_seed(0)

    def draw(tokens: int, heads: int, width: int) -> torch.Tensor:
        return torch.randn(tokens, heads, width).to(dtype)

    def run(starts: np.ndarray, counts: np.ndarray, rows: np.ndarray) -> None:
        tokens = int(counts.sum())
        query = draw(tokens, kv_heads * shared, key_size)
        key, value = draw(tokens, kv_heads, key_size), draw(tokens, kv_heads, value_size)
        key *= torch.linspace(1, growth, tokens).to(dtype)[:, None, None]
        metadata = build_metadata(starts, counts, table[rows], size, CPU)
        options = {"scale": key_size**-0.5, "window": window, "softcap": softcap}
        kept = [part.float() if kv_dtype is None else rounded_to_8_bits(part) for part in (key, value)]
        expected = reference(0, query.float(), *kept, metadata, **options)
        ties = 0.0 if kv_dtype is None else 1e-3  # a number half-way between two may go either way
        near(ours(0, query, key, value, metadata, **options), expected, dtype, ties)

    earlier = np.flatnonzero(starts)
    if len(earlier):
        run(np.zeros(len(earlier), np.int32), starts[earlier], earlier)
    run(starts, counts, np.arange(len(counts)))


def test_long_rows_are_the_same_with_any_number_of_threads(kernels):
    attention = CpuAttention(kernels, torch.float32)
    attention.allocate([LayerShape(2, 64, 64)], 64, 16)
    torch.manual_seed(0)
    attention.keys[0].normal_()
    attention.values[0].normal_()
    query, key, value = torch.randn(1, 6, 64), torch.randn(1, 2, 64), torch.randn(1, 2, 64)
    table = np.arange(64, dtype=np.int32)[None]
    metadata = build_metadata(np.array([1000], np.int32), np.array([1], np.int32), table, 16, CPU)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(attention(0, query, key, value, metadata, scale=0.1))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_copies_read_every_source_before_any_is_overwritten(kernels):
    attention = CpuAttention(kernels, torch.float32)
    attention.allocate([LayerShape(1, 2, 2), LayerShape(2, 2, 2)], 4, 16)
    for cache in (*attention.keys, *attention.values):
        cache.normal_()
    before = [cache.clone() for cache in (*attention.keys, *attention.values)]
    attention.copy_blocks(torch.tensor([[0, 1], [1, 0], [1, 3]]))
    for cache, old in zip((*attention.keys, *attention.values), before, strict=True):
        assert torch.equal(cache, old[[1, 0, 2, 1]])


def test_blocks_in_8_bits_are_copied_with_their_scales(kernels):
    attention = CpuAttention(kernels, torch.float32, torch.int8)
    attention.allocate([LayerShape(2, 64, 64)], 4, 16)
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 64), torch.randn(20, 2, 64), torch.randn(20, 2, 64)
    options = {"scale": 0.1}

    def step(table: list[int], start: int, count: int) -> torch.Tensor:
        metadata = build_metadata(
            np.array([start], np.int32), np.array([count], np.int32), np.array([table], np.int32), 16, CPU
        )
        own = slice(start, start + count)
        return attention(0, query.expand(count, -1, -1), key[own], value[own], metadata, **options)

    step([2, 0], 0, 19)
    attention.copy_blocks(torch.tensor([[2, 3], [0, 1]]))
    assert torch.equal(step([2, 0], 19, 1), step([3, 1], 19, 1))


def test_a_library_that_crashes_or_answers_wrongly_is_not_used(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not HERE:
        pytest.skip("no compiler, or no kernels")
    for body, complaint in (("abort();", "died of signal 6"), ("return 7;", "gave wrong results")):
        path = tmp_path / f"{len(body)}.so"
        source = f"#include <stdlib.h>\nint paceline_check(void) {{ {body} }}\n"
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=source, text=True, check=True)
        assert complaint in str(prove(path))


def test_kernels_are_chosen_by_name_and_named(tmp_path):
    assert choose_kernels("off", CPU) == (None, "off")
    assert choose_kernels("auto", torch.device("cuda")).kernels is None
    with pytest.raises(ConfigError, match="--kernels"):
        choose_kernels("generic", torch.device("cuda"))
    if HERE:
        assert choose_kernels("auto", CPU).reason.startswith(HERE[0])


def test_one_openmp_runtime_serves_torch_and_the_kernels():
    if not sys.platform.startswith("linux") or not HERE:
        pytest.skip("no /proc, or no kernels")
    runtimes = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    assert len({name for name in runtimes if Path(name).name.startswith(("libgomp", "libiomp", "libomp"))}) == 1


def test_a_decoder_gives_the_same_tokens_with_kernels_and_without(tmp_path):
    directory = save(random_model(CONFIGS["qwen3"]()), tmp_path)
    generated = []
    for kernels in ("off", *HERE):
        executor = ModelExecutor(
            ExecutorConfig(str(directory), dtype="float32", device="cpu", num_blocks=64, threads=2, kernels=kernels)
        )
        prompts = [np.random.default_rng(n).integers(3, 97, n).tolist() for n in (5, 40, 17)]
        batch = PlanBatch(prompts, num_blocks=64, max_model_len=96)
        for counts in ({0: 5}, {1: 30}, {1: 9, 2: 17}):
            plan = batch.plan(counts)
            batch.complete(plan, executor.execute(plan).tokens)
        for _ in range(20):
            plan = batch.plan()
            batch.complete(plan, executor.execute(plan).tokens)
        generated.append([batch.generated(row) for row in range(3)])
    assert all(tokens == generated[0] for tokens in generated)
    assert any(line == f"kernels {kernels}" for line in executor.description)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_a_large_decode_step_gives_every_row_what_a_small_one_does(tmp_path, kv_cache_dtype):
    directory = save(random_model(CONFIGS["qwen3"]()), tmp_path)
    config = ExecutorConfig(
        str(directory), dtype="bfloat16", device="cpu", num_blocks=400, max_num_seqs=40, kv_cache_dtype=kv_cache_dtype
    )
    prompts = [np.random.default_rng(n).integers(3, 97, 1 + 3 * n).tolist() for n in range(40)]
    generated = []
    for together in (40, 8):
        executor = ModelExecutor(config)
        batch = PlanBatch(prompts, num_blocks=400, max_model_len=160)
        for row, prompt in enumerate(prompts):
            plan = batch.plan({row: len(prompt)})
            batch.complete(plan, executor.execute(plan).tokens)
        for _ in range(4):
            for first in range(0, 40, together):
                plan = batch.plan(dict.fromkeys(range(first, first + together), 1))
                batch.complete(plan, executor.execute(plan).tokens)
        generated.append([batch.generated(row) for row in range(40)])
    assert generated[0] == generated[1]
