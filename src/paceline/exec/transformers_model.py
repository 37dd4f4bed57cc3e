"""Any decoder-only text architecture of transformers, over paged K/V.

All rows of a step are one sequence [1, T]; each token's position comes from `position_ids`, and who may attend to
whom is up to paged attention alone, so transformers builds neither masks nor caches.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from paceline.errors import ModelError
from paceline.exec.attention import Attention, AttentionMetadata, LayerShape
from paceline.exec.self_check import refusal, self_check
from paceline.exec.transformers_attention import (
    PROBE,
    SERVE,
    PagedStep,
    ProbeStep,
    UnsupportedAttention,
    bind,
    register,
)

_DEFAULT_MAX_POSITIONS = 2048
_KV_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}


def load(
    path_or_id: str,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    new_attention: Callable[[], Attention],
    config: PreTrainedConfig | None = None,
) -> TransformersModel:
    """Load a local directory or hub id and prove that paged attention serves it exactly.

    Args:
        new_attention: makes the attention to prove it with, nothing allocated yet.

    Raises ModelError naming the architecture and the reason when it cannot be served, or what is wrong with the files.
    """
    try:
        config = config or AutoConfig.from_pretrained(path_or_id)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path_or_id}: no usable config.json: {_first_line(error)}") from error
    refuse_by_config(config, path_or_id)
    try:
        with _quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path_or_id, config=config, dtype=dtype, attn_implementation="eager", output_loading_info=True
            )
    except Exception as error:  # safetensors, torch and transformers each raise their own kinds
        raise ModelError(f"{path_or_id}: the weights cannot be loaded: {_first_line(error)}") from error
    causal_lm, found = loaded
    missing = sorted({*found["missing_keys"], *(str(key) for key in found["mismatched_keys"])})
    if missing:
        raise ModelError(
            f"{path_or_id}: {len(missing)} weights are missing or of the wrong shape, {missing[0]} first; "
            "download the model again"
        )
    return from_causal_lm(causal_lm.to(device), path_or_id, new_attention=new_attention)


def from_causal_lm(
    causal_lm: PreTrainedModel, name: str, *, new_attention: Callable[[], Attention]
) -> TransformersModel:
    """Serve a model that is in memory already (and from now on belongs to the result). Checks it as `load` does."""
    refuse_by_config(causal_lm.config, name)
    model = TransformersModel(causal_lm, name)
    self_check(
        model,
        model.plain_logits,
        new_attention(),
        name=name,
        architecture=type(causal_lm).__name__,
        windows=model.windows,
    )
    return model


def refuse_by_config(config: PreTrainedConfig, name: str) -> None:
    """ModelError for what its configuration alone shows cannot be served, before any weight is read."""
    causal_lm: Any = AutoModelForCausalLM._model_mapping.get(type(config), None)
    architecture = causal_lm.__name__ if causal_lm else (config.architectures or [config.model_type])[0]
    if config.is_encoder_decoder:
        raise refusal(name, architecture, "it has an encoder beside its decoder")
    for part in ("vision_config", "audio_config"):
        if getattr(config, part, None) is not None:
            raise refusal(name, architecture, f"it is not a text-only model (it has a {part})")
    if causal_lm is None:
        raise refusal(name, architecture, "transformers has no causal language model for it")
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _KV_LAYERS)
    if other:
        raise refusal(name, architecture, f"some of its layers are not plain attention over K/V ({', '.join(other)})")
    if causal_lm._is_stateful:
        raise refusal(name, architecture, "it keeps state that is not K/V")


class TransformersModel:
    """A `Model` (see `exec.model`) that computes with transformers' own modelling code.

    Raises ModelError when the architecture does what paged attention cannot. That logits are right is not shown by
    building it, but by `self_check`.
    """

    def __init__(self, causal_lm: PreTrainedModel, name: str) -> None:
        register()
        self._causal_lm = causal_lm.eval().requires_grad_(False)
        self.dtype: torch.dtype = causal_lm.dtype
        self.device: torch.device = causal_lm.device
        self.max_positions = _max_positions(causal_lm.config)
        try:
            self._decoder: nn.Module = getattr(causal_lm, _decoder_name(causal_lm))
            self._head = _head_only(causal_lm)
            self._calls, self.vocab_size = self._probe()
        except Exception as error:  # whatever an unsuited architecture trips over
            raise refusal(name, type(causal_lm).__name__, _reason(error)) from error
        self.layers: list[LayerShape] = [call.shape for call in self._calls]
        self.windows: list[int | None] = [call.window for call in self._calls]
        self._step = PagedStep(self._calls)
        with _quiet():
            bind(causal_lm, self._step, SERVE)

    def _probe(self) -> tuple[list[Any], int]:
        """A pass over a few tokens, for the attention calls it makes and the size of its logits."""
        probe = ProbeStep()
        with _quiet():
            bind(self._causal_lm, probe, PROBE)
        positions = torch.arange(3, device=self.device)
        hidden = self._decode(positions + 1, positions)
        if not probe.calls:
            raise UnsupportedAttention("its attention bypasses transformers' attention interface")
        return probe.calls, self.logits(hidden).shape[-1]

    @torch.no_grad()
    def _decode(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self._decoder(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        hidden: torch.Tensor = output[0]
        return hidden[0]

    def forward(self, tokens: torch.Tensor, attention: Attention, metadata: AttentionMetadata) -> torch.Tensor:
        """Final hidden states [T, hidden] of the step's tokens [T] int64."""
        self._step.begin(attention, metadata)
        try:
            return self._decode(tokens, metadata.positions)
        finally:
            self._step.end()

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [S, vocab_size] float32, by the architecture's own code after its decoder."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0].float()

    def largest(self, hidden: torch.Tensor) -> None:
        return None

    @torch.no_grad()
    def plain_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """[T] int64 -> [T, vocab_size] float32: one text, by transformers alone, with its own attention and cache.

        For comparison only: nothing else may run on this model meanwhile.
        """
        with _quiet():
            self._causal_lm.set_attn_implementation("eager")
            try:
                output = self._causal_lm(input_ids=tokens[None])
            finally:
                self._causal_lm.set_attn_implementation(SERVE)
        logits: torch.Tensor = output.logits
        return logits[0].float()


class _DecoderOutput:
    """A decoder's output as its head reads it: hidden states, and None for whatever else some heads pass on."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _Passthrough(nn.Module):
    """Stands where a decoder was: hidden states in (as `inputs_embeds`), the same hidden states out."""

    @property
    def decoder(self) -> _Passthrough:  # some heads call the decoder inside their base model
        return self

    def forward(self, *inputs: Any, inputs_embeds: torch.Tensor, **keywords: Any) -> _DecoderOutput:
        return _DecoderOutput(inputs_embeds)


def _decoder_name(causal_lm: PreTrainedModel) -> str:
    for name in (causal_lm.base_model_prefix, "model", "transformer"):
        if name in causal_lm._modules:
            return name
    raise UnsupportedAttention("it has no separate decoder")


def _head_only(causal_lm: PreTrainedModel) -> PreTrainedModel:
    """The same model, sharing all weights, that takes what comes out of the decoder instead of tokens.

    So whatever an architecture does after its decoder (biases, scales, soft caps) is done by its own code.
    """
    head = copy.copy(causal_lm)
    head.__dict__["_modules"] = dict(causal_lm._modules)
    head._modules[_decoder_name(causal_lm)] = _Passthrough()
    return head


def _max_positions(config: PreTrainedConfig) -> int:
    """Longest text. Rotary embeddings that change with the longest text of a batch are kept from changing at all."""
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None) or _DEFAULT_MAX_POSITIONS
    parameters: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    for rope in (parameters, *(p for p in parameters.values() if isinstance(p, dict))):
        if rope.get("rope_type") in ("dynamic", "longrope"):
            original = rope.get("original_max_position_embeddings")
            limit = min(limit, original or getattr(text, "original_max_position_embeddings", None) or limit)
    return int(limit)


def _reason(error: Exception) -> str:
    if isinstance(error, UnsupportedAttention):
        return str(error)
    return f"its code does not run on tokens with given positions ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from warning about what a refusal says better."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
