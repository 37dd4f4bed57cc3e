"""Every architecture gives transformers' logits over paged K/V, or is refused by name and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import ModelError
from paceline.exec import transformers_model
from paceline.exec.attention import Attention, AttentionMetadata
from paceline.exec.attention.reference import ReferenceAttention
from paceline.exec.config import ExecutorConfig
from paceline.exec.loader import load_model
from paceline.exec.self_check import Piece, paged_logits, self_check
from paceline.exec.transformers_model import TransformersModel, from_causal_lm, refuse_by_config
from tests.exec.tiny_models import SERVED, WINDOW, served_here, tiny_config, tiny_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for models this small a second one only gets in the way
    yield
    torch.set_num_threads(threads)


def reference_attention(dtype: torch.dtype = torch.float32) -> ReferenceAttention:
    return ReferenceAttention(dtype, CPU)


def random_texts(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 128, (length,), generator=generator) for length in lengths]


STEPS = {
    "whole": [[Piece(0, 0, 30)], [Piece(1, 0, 17)], [Piece(2, 0, 9)]],
    "in one step": [[Piece(2, 0, 9), Piece(0, 0, 30), Piece(1, 0, 17)]],
    "in chunks": [
        [Piece(0, 0, 7), Piece(1, 0, 5)],
        [Piece(1, 5, 6), Piece(2, 0, 3), Piece(0, 7, 23)],
        [Piece(2, 3, 9), Piece(0, 23, 24), Piece(1, 6, 17)],
        [Piece(0, 24, 30)],
    ],
    "token by token": [
        [Piece(0, 0, 21), Piece(1, 0, 8)],
        *([Piece(0, at, at + 1), Piece(2, at - 21, at - 20), Piece(1, at - 13, at - 12)] for at in range(21, 30)),
    ],
}


@pytest.mark.parametrize("model_type", SERVED)
def test_logits_are_those_of_transformers(model_type: str) -> None:
    if not served_here(model_type):
        pytest.skip("this release of transformers has no such architecture, or its attention bypasses the interface")
    causal_lm = tiny_model(model_type)
    texts = random_texts([30, 17, 9])
    with torch.no_grad():
        expected = [causal_lm(input_ids=text[None]).logits[0] for text in texts]

    model = from_causal_lm(causal_lm, model_type, new_attention=reference_attention)

    assert model.vocab_size == expected[0].shape[1]
    assert model.max_positions == 256 or model_type in {"ctrl", "opt", "biogpt", "gptj", "codegen", "gpt_neox"}
    for way, steps in STEPS.items():
        found = paged_logits(model, reference_attention(), texts, steps)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3, msg=lambda text, way=way: f"{way}: {text}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("model_type", ["gemma2", "gpt2", "mixtral", "qwen3_moe"])
def test_half_precision_passes_the_self_check(model_type: str, dtype: torch.dtype) -> None:
    causal_lm = tiny_model(model_type).to(dtype)
    model = from_causal_lm(causal_lm, model_type, new_attention=lambda: reference_attention(dtype))
    assert model.dtype == dtype
    assert model.logits(torch.zeros(1, 64, dtype=dtype)).dtype == torch.float32


def test_layers_may_differ_in_shape_and_window() -> None:
    model = TransformersModel(tiny_model("gemma4_text"), "gemma4")
    assert [(layer.kv_heads, layer.key_size, layer.value_size) for layer in model.layers] == [(2, 16, 16), (2, 32, 32)]
    assert model.windows == [WINDOW, None]

    latent = TransformersModel(tiny_model("deepseek_v3"), "deepseek")
    assert {(layer.kv_heads, layer.key_size, layer.value_size) for layer in latent.layers} == {(4, 24, 12)}


def test_two_models_in_one_process_do_not_meet() -> None:
    first, second = (TransformersModel(tiny_model(kind), kind) for kind in ("llama", "gemma2"))
    texts = random_texts([20])
    steps = [[Piece(0, 0, 12)], [Piece(0, 12, 20)]]
    for model in (first, second, first):
        found = paged_logits(model, reference_attention(), texts, steps)[0]
        torch.testing.assert_close(found, model.plain_logits(texts[0]), rtol=1e-3, atol=1e-3)


def test_positions_beyond_the_original_context_scale_attention_as_transformers_does() -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 8,
        "llama_4_scaling_beta": 0.5,
    }
    model = TransformersModel(tiny_model("ministral3", rope_parameters=rope), "ministral3")
    texts = random_texts([30, 17, 9])
    for steps in STEPS.values():
        found = paged_logits(model, reference_attention(), texts, steps)
        for ours, text in zip(found, texts, strict=True):
            torch.testing.assert_close(ours, model.plain_logits(text), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rope_type", ["longrope", "dynamic"])
def test_rotary_embeddings_that_follow_the_longest_text_of_a_batch_are_kept_to_one_kind(rope_type: str) -> None:
    rope: dict[str, Any] = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0}
    if rope_type == "longrope":
        rope |= {"original_max_position_embeddings": 64, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    model = TransformersModel(tiny_model("llama", rope_parameters=rope), "tiny")
    assert model.max_positions == (64 if rope_type == "longrope" else 256)


STATE = "not plain attention over K/V (linear_attention"
BYPASS = "bypasses transformers' attention interface"
REFUSED = {
    "bloom": ("BloomForCausalLM", BYPASS, {}),
    "mpt": ("MptForCausalLM", BYPASS, {"d_model": 64, "n_heads": 4, "n_layers": 2, "hidden_size": None}),
    "falcon": ("FalconForCausalLM", BYPASS, {"head_dim": None}),
    "xglm": ("XGLMForCausalLM", BYPASS, {}),
    "mamba": ("MambaForCausalLM", STATE, {}),
    "jamba": ("JambaForCausalLM", STATE, {}),
    "rwkv": ("RwkvForCausalLM", "it keeps state that is not K/V", {}),
    "qwen3_next": ("Qwen3NextForCausalLM", STATE, {}),
    "minimax": ("MiniMaxForCausalLM", STATE, {}),
    "lfm2": ("Lfm2ForCausalLM", "conv", {"layer_types": ["conv", "full_attention"]}),
    "gpt_oss": ("GptOssForCausalLM", "sinks", {}),
    "deepseek_v32": ("DeepseekV32ForCausalLM", "not plain attention over K/V", {}),
    "llama4_text": ("Llama4ForCausalLM", "chunked", {}),
    "doge": ("DogeForCausalLM", "builds an attention mask of its own", {}),
    "bert": ("BertLMHeadModel", "looks ahead", {}),
    "bart": ("BartForCausalLM", "encoder", {}),
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_served_exactly_is_refused_by_name_and_reason(model_type: str) -> None:
    architecture, reason, settings = REFUSED[model_type]
    config = tiny_config(model_type, **settings)
    with pytest.raises(ModelError, match="cannot be served") as refused:
        refuse_by_config(config, "some/model")  # what the configuration tells is told before weights are read
        from_causal_lm(tiny_model(model_type, **settings), "some/model", new_attention=reference_attention)
    assert str(refused.value).startswith(f"some/model (architecture {architecture}) cannot be served: ")
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


class _Altered(ReferenceAttention):
    """An attention that is wrong in one way."""

    def __init__(self, how: str) -> None:
        super().__init__(torch.float32, CPU)
        self.how = how

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        if self.how == "window one too short":
            window = window and window - 1
        elif self.how == "soft cap dropped":
            softcap = None
        elif self.how == "K/V of earlier steps lost" and layer == 0 and metadata.lengths_list != metadata.counts_list:
            self.keys[0][metadata.block_table[0, 0] * self.block_size] = 0
        elif self.how == "rows see each other":
            key, value = key.flip(0), value.flip(0)
        return super().__call__(layer, query, key, value, metadata, scale=scale, window=window, softcap=softcap)


@pytest.mark.parametrize(
    "how", ["window one too short", "soft cap dropped", "K/V of earlier steps lost", "rows see each other"]
)
def test_the_self_check_notices_attention_that_is_wrong(how: str) -> None:
    model = TransformersModel(tiny_model("gemma2"), "gemma2")
    attention: Attention = _Altered(how)
    with pytest.raises(ModelError, match=r"tiny \(architecture Gemma2\) cannot be served: it failed its self-check"):
        self_check(model, model.plain_logits, attention, name="tiny", architecture="Gemma2", windows=model.windows)


def test_the_self_check_outruns_windows_longer_than_its_usual_text() -> None:
    model = TransformersModel(tiny_model("mistral", sliding_window=60), "mistral")
    with pytest.raises(ModelError, match="self-check"):
        self_check(
            model,
            model.plain_logits,
            _Altered("window one too short"),
            name="tiny",
            architecture="Mistral",
            windows=model.windows,
        )


def load(path: Path, dtype: torch.dtype = torch.float32) -> TransformersModel:
    return transformers_model.load(str(path), dtype, CPU, new_attention=lambda: reference_attention(dtype))


def test_a_saved_model_loads_in_the_number_format_asked_for(tmp_path: Path) -> None:
    causal_lm = tiny_model("olmo2")
    causal_lm.save_pretrained(tmp_path)
    text = random_texts([12])[0]
    with torch.no_grad():
        expected = causal_lm(input_ids=text[None]).logits[0]

    torch.testing.assert_close(load(tmp_path).plain_logits(text), expected, rtol=1e-4, atol=1e-4)
    assert load(tmp_path, torch.bfloat16).dtype == torch.bfloat16


def test_damaged_or_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        load(tmp_path)

    causal_lm = tiny_model("olmo2")
    causal_lm.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="the weights cannot be loaded"):
        load(tmp_path)

    weights.unlink()
    with pytest.raises(ModelError, match="the weights cannot be loaded"):
        load(tmp_path)


def test_weights_that_are_not_there_are_not_made_up(tmp_path: Path) -> None:
    causal_lm = tiny_model("olmo2")
    state = causal_lm.state_dict()
    state.pop("model.layers.1.mlp.up_proj.weight")
    causal_lm.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ModelError, match=r"1 weights are missing.*model\.layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path)


def test_the_loader_turns_to_transformers_for_what_the_native_decoder_does_not_know(tmp_path: Path) -> None:
    tiny_model("olmo2").save_pretrained(tmp_path)
    model = load_model(ExecutorConfig(model=str(tmp_path), dtype="float32", device="cpu"))
    assert isinstance(model, TransformersModel)


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_the_native_decoder_passes_the_same_self_check(model_type: str, tmp_path: Path) -> None:
    causal_lm = tiny_model(model_type)
    causal_lm.save_pretrained(tmp_path)
    native = load_model(ExecutorConfig(model=str(tmp_path), dtype="float32", device="cpu", backend="native"))
    plain = TransformersModel(causal_lm, model_type)
    self_check(
        native,
        plain.plain_logits,
        reference_attention(),
        name="tiny",
        architecture=model_type,
        windows=plain.windows,
    )


def test_the_table_of_models_lists_what_is_shown_here() -> None:
    table = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    served, refused = table.split("| Refused |")
    assert [kind for kind in SERVED if f"`{kind}`" not in served] == []
    assert [kind for kind in REFUSED if f"`{kind.removesuffix('_text')}`" not in refused] == []
