"""Weights that stay quantised: the products against the same weights widened, and whole models."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from paceline.errors import ConfigError
from paceline.exec.config import DEFAULT_MODEL
from paceline.exec.executor import ExecutorConfig, ModelExecutor
from paceline.exec.native.quantised import QuantisedLinear
from paceline.exec.stored import NAMES, Q4_1, Q8_0, StoredMatrix, quantise

from .plans import PlanBatch
from .random_models import CONFIGS, random_model, save
from .test_gguf import write_gguf
from .test_native_kernels import HERE, kernels  # noqa: F401  a fixture

pytestmark = pytest.mark.skipif(not HERE, reason="no kernels here")

_SCALES = {"Q4_0": (0, 1), "Q4_1": (0, 2), "Q8_0": (0, 1), "Q4_K": (0, 2), "Q6_K": (208, 1)}
"""Where the half-precision numbers of a block begin, and how many there are."""


def stored(kind: int, outputs: int, inputs: int, seed: int = 0) -> tuple[StoredMatrix, torch.Tensor]:
    """A matrix of random bits with scales of a sensible size, and what it stands for."""
    quant = gguf.GGMLQuantizationType(kind)
    block, size = gguf.GGML_QUANT_SIZES[quant]
    generator = np.random.default_rng(seed)
    raw = generator.integers(0, 256, (outputs, inputs // block, size), dtype=np.uint8)
    first, count = _SCALES[NAMES[kind]]
    scales = (generator.standard_normal((outputs, inputs // block, count)) * 0.01).astype(np.float16)
    raw[..., first : first + 2 * count] = scales.view(np.uint8)
    rows = raw.reshape(outputs, -1)
    return StoredMatrix(kind, torch.from_numpy(rows), inputs), torch.from_numpy(gguf.dequantize(rows, quant))


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("kind", NAMES, ids=NAMES.values())
def test_rows_and_float32_products_are_those_of_the_widened_weights(kernels, kind):  # noqa: F811
    matrix, wide = stored(kind, 80, 512)
    bias = torch.randn(80, generator=torch.Generator().manual_seed(0))
    packed = QuantisedLinear(kernels, [matrix], torch.float32, bias)
    assert torch.equal(packed.rows(torch.arange(80)), wide)
    for rows in (1, 100):
        hidden = torch.randn(rows, 512, generator=torch.Generator().manual_seed(rows))
        expected = torch.nn.functional.linear(hidden.double(), wide.double(), bias.double())
        assert error(packed.wide(hidden), expected) < 2e-6
        assert torch.equal(packed.largest(hidden)[1], packed.wide(hidden).argmax(-1))


@pytest.mark.parametrize("kind", NAMES, ids=NAMES.values())
def test_bfloat16_products_round_the_left_side_to_8_bits_alike_in_any_company(kernels, kind):  # noqa: F811
    matrix, wide = stored(kind, 80, 512)
    packed = QuantisedLinear(kernels, [matrix], torch.bfloat16)
    hidden = torch.randn(130, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
    blocks = hidden.double().view(130, -1, 32)
    most = blocks.abs().amax(-1, keepdim=True)
    rounded = ((blocks * (127 / most.float()).double()).round() * most / 127).view(130, 512)
    together = packed.wide(hidden)
    assert error(together, rounded @ wide.double().T) < 1e-3  # numbers half-way between two may go either way
    for count in (1, 7, 96, 97):
        assert torch.equal(packed.wide(hidden[:count]), together[:count])


def test_what_is_not_finite_stays_so(kernels):  # noqa: F811
    matrix, _ = stored(Q4_1, 16, 64)
    packed = QuantisedLinear(kernels, [matrix], torch.bfloat16)
    hidden = torch.ones(3, 64, dtype=torch.bfloat16)
    hidden[0, 5], hidden[1, 40] = float("nan"), float("inf")
    found = packed.wide(hidden)
    assert found[0].isnan().all() and found[1].isnan().all() and found[2].isfinite().all()


def test_maps_of_several_formats_stack_and_pair(kernels):  # noqa: F811
    (first, wide_first), (second, wide_second) = stored(12, 48, 256), stored(14, 48, 256, 1)
    hidden = torch.randn(5, 256, generator=torch.Generator().manual_seed(0))
    expected = hidden.double() @ torch.cat((wide_first, wide_second)).double().T
    for paired in (False, True):
        packed = QuantisedLinear(kernels, [first, second], torch.float32, paired=paired)
        assert error(packed.wide(hidden), expected) < 2e-6


def test_quantising_leaves_less_error_than_the_usual_way(kernels):  # noqa: F811
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * 0.05
    weight[3] = 0.0
    weight[4] = 0.25
    for kind, most in ((Q8_0, 1.0), (Q4_1, 0.96)):
        quant = gguf.GGMLQuantizationType(kind)
        ours = torch.from_numpy(gguf.dequantize(quantise(kernels, weight, kind).data.numpy(), quant))
        usual = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), quant), quant))
        assert error(ours, weight) <= error(usual, weight) * most + 1e-4
        assert not ours[3].any()


def greedy(executor: ModelExecutor, steps: int = 12) -> list[list[int]]:
    prompts = [np.random.default_rng(n).integers(3, 97, n).tolist() for n in (5, 40, 17)]
    batch = PlanBatch(prompts, num_blocks=64, max_model_len=96)
    for counts in ({0: 5}, {1: 30}, {1: 9, 2: 17}, *[None] * steps):
        plan = batch.plan(counts)
        batch.complete(plan, executor.execute(plan).tokens)
    return [batch.generated(row) for row in range(3)]


@pytest.mark.parametrize(("architecture", "config"), [("llama", "llama-one-kv-head-tied"), ("qwen2", "qwen2")])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_quantised_file_gives_the_tokens_of_its_widened_weights(tmp_path, architecture, config, kind):
    quantisation = gguf.GGMLQuantizationType[kind]
    path = write_gguf(random_model(CONFIGS[config]()), tmp_path / "small.gguf", architecture, quantisation)
    settings = {"dtype": "float32", "device": "cpu", "num_blocks": 64, "threads": 2}
    expected = greedy(ModelExecutor(ExecutorConfig(str(path), kernels="off", **settings)))
    for name in HERE:
        executor = ModelExecutor(ExecutorConfig(str(path), kernels=name, **settings))
        assert any(f"weights in {kind}" in line for line in executor.description)
        assert greedy(executor) == expected


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, False), ({"dtype": "float32"}, True), ({"quantization": "keep"}, True), ({"quantization": "none"}, False)],
)
def test_a_small_quantised_file_is_widened_unless_that_is_exact_or_asked_for(tmp_path, settings, kept):
    quantisation = gguf.GGMLQuantizationType.Q8_0
    path = write_gguf(random_model(CONFIGS["qwen2"]()), tmp_path / "small.gguf", "qwen2", quantisation)
    executor = ModelExecutor(ExecutorConfig(str(path), device="cpu", num_blocks=64, **settings))
    assert any("weights in Q8_0" in line for line in executor.description) == kept


def test_keep_is_refused_where_there_is_nothing_to_keep(tmp_path):
    directory = save(random_model(CONFIGS["qwen3"]()), tmp_path)
    with pytest.raises(ConfigError, match=r"--quantization: 'keep' .* not quantised"):
        ModelExecutor(ExecutorConfig(str(directory), quantization="keep"))
    with pytest.raises(ConfigError, match=r"--quantization: 'keep' .* native kernels"):
        ModelExecutor(ExecutorConfig(DEFAULT_MODEL, quantization="keep", kernels="off"))


def test_a_checkpoint_can_be_quantised_as_it_is_loaded(tmp_path):
    directory = save(random_model(CONFIGS["qwen3"]()), tmp_path)
    settings = {"dtype": "float32", "device": "cpu", "num_blocks": 64}
    plain = ModelExecutor(ExecutorConfig(str(directory), **settings))
    hidden = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    errors = []
    for scheme in ("int8", "int4"):
        executor = ModelExecutor(ExecutorConfig(str(directory), quantization=scheme, **settings))
        layer, exact = executor.model._layers[0].down, plain.model._layers[0].down
        inner = torch.randn(4, layer.inputs, generator=torch.Generator().manual_seed(0))
        errors.append(error(executor.model.logits(hidden), plain.model.logits(hidden)))
        # 48 inputs are no multiple of 32, so this map stays as it is
        assert type(layer) is type(exact) and torch.equal(layer.wide(inner), exact.wide(inner))
        assert isinstance(executor.model._layers[0].qkv, QuantisedLinear)
        assert greedy(executor)
    assert 0 < errors[0] == errors[1] < 0.02  # the output projection has 8 bits in both


def test_quantization_that_cannot_be_is_refused_by_name(tmp_path):
    directory = save(random_model(CONFIGS["llama"]()), tmp_path)
    with pytest.raises(ConfigError, match=r"--quantization.*native kernels"):
        ModelExecutor(ExecutorConfig(str(directory), quantization="int8", kernels="off"))
    with pytest.raises(ConfigError, match=r"--quantization.*quantised already"):
        ModelExecutor(ExecutorConfig(DEFAULT_MODEL, quantization="int4"))
    with pytest.raises(ConfigError, match="--quantization"):
        ModelExecutor(ExecutorConfig(str(directory), quantization="int8", backend="transformers"))
    with pytest.raises(ConfigError, match="--quantization"):
        ExecutorConfig(quantization="int3")
