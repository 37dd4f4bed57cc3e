"""transformers' attention calls, turned into calls of paged attention.

Two attention implementations are registered with transformers. `paceline` serves. `paceline_probe` is used once, when
a model is loaded: it computes plain attention and records, call by call, which module attends, over which K/V shapes
and how far back. Neither trusts keyword arguments to arrive, since some architectures drop them on the way: every
module of a model holds a reference to that model's own `AttentionStep`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from paceline.exec.attention import Attention, AttentionMetadata, LayerShape

SERVE = "paceline"
PROBE = "paceline_probe"

_FAR = 1 << 18
"""Mask functions are examined at about this position: a window beyond it is longer than any context served."""

_SINKS = "its attention has sinks (a learned logit beside those of the keys)"
_BIAS = "its attention adds a position bias to the logits"
_SPARSE = "its attention is sparse (it selects tokens by a learned index)"
_BEYOND_PLAIN_ATTENTION = {
    "s_aux": _SINKS,
    "sinks": _SINKS,
    "position_bias": _BIAS,
    "alibi": _BIAS,
    "indices": _SPARSE,
    "block_indices": _SPARSE,
}
_HARMLESS = {"dropout", "is_causal", "position_ids", "sliding_window", "use_cache", "cache_position"}
"""Keywords that change nothing here: there is no dropout in serving, and masks tell windows."""


class UnsupportedAttention(Exception):
    """What an architecture does that paged attention does not. `str(error)` is the reason, for a person."""


class AttentionStep(Protocol):
    """What a model's attention calls are answered by."""

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,  # [1, heads, T, key_size]
        key: torch.Tensor,  # [1, kv_heads, T, key_size]
        value: torch.Tensor,  # [1, kv_heads, T, value_size]
        mask: torch.Tensor | None,
        *,
        scaling: float | None = None,
        softcap: float | None = None,
        **keywords: Any,
    ) -> torch.Tensor:  # [1, T, heads, value_size]
        ...


@dataclass(frozen=True)
class AttentionCall:
    """One attention call of a forward pass. The i-th call of every pass is layer i of the K/V."""

    module: nn.Module
    shape: LayerShape
    window: int | None


def register() -> None:
    """Make both implementations known to transformers. Doing so again changes nothing.

    Without a mask entry of its own, `paceline` makes transformers build no mask at all.
    """
    for implementation in (SERVE, PROBE):
        AttentionInterface.register(implementation, _attend)
    AttentionMaskInterface.register(PROBE, _probe_mask)


def bind(model: PreTrainedModel, step: AttentionStep, implementation: str) -> None:
    """Let `step` answer the attention calls of this model, and of no other."""
    for module in model.modules():
        module.__dict__["paceline_step"] = step
    model.set_attn_implementation(implementation)


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    step: AttentionStep = module.__dict__["paceline_step"]
    return step.attend(module, query, key, value, attention_mask, **keywords), None


class PagedStep:
    """Hands each attention call of a forward pass to paged attention, as the layer that its turn makes it."""

    def __init__(self, calls: list[AttentionCall]) -> None:
        self._calls = calls
        self._attention: Attention | None = None
        self._metadata: AttentionMetadata | None = None
        self._turn = 0

    def begin(self, attention: Attention, metadata: AttentionMetadata) -> None:
        self._attention, self._metadata, self._turn = attention, metadata, 0

    def end(self) -> None:
        self._attention = self._metadata = None

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        scaling: float | None = None,
        softcap: float | None = None,
        **keywords: Any,
    ) -> torch.Tensor:
        if self._attention is None or self._metadata is None:
            raise RuntimeError("attention was called outside of a step")
        layer, self._turn = self._turn, self._turn + 1
        call = self._calls[layer]
        if call.module is not module:
            raise UnsupportedAttention("the order of its attention layers changes from one pass to the next")
        output = self._attention(
            layer,
            query[0].transpose(0, 1).contiguous(),
            key[0].transpose(0, 1).contiguous(),
            value[0].transpose(0, 1).contiguous(),
            self._metadata,
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=call.window,
            softcap=softcap,
        )
        return output[None]


class ProbeStep:
    """Computes plain attention, and records every call and what in it goes beyond paged attention."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        scaling: float | None = None,
        softcap: float | None = None,
        **keywords: Any,
    ) -> torch.Tensor:
        for keyword, given in keywords.items():
            if given is not None and given is not False and keyword not in _HARMLESS:
                unknown = f"its attention is given {keyword!r}, which paged attention does not know"
                raise UnsupportedAttention(_BEYOND_PLAIN_ATTENTION.get(keyword, unknown))
        if keywords.get("is_causal") is False or getattr(module, "is_causal", True) is False:
            raise UnsupportedAttention("its attention also looks ahead (it is not causal)")
        if key.shape[2] != query.shape[2]:
            raise UnsupportedAttention("its attention reads more than the tokens of the text")
        heads, kv_heads = query.shape[1], key.shape[1]
        shape = LayerShape(kv_heads, key.shape[3], value.shape[3])
        self.calls.append(AttentionCall(module, shape, _window(mask, keywords.get("sliding_window"))))
        key, value = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (key, value))
        logits = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        ahead = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool, device=query.device).triu(1)
        weights = logits.masked_fill(ahead, float("-inf")).softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous()


def _window(mask: torch.Tensor | None, keyword: int | None) -> int | None:
    """How far back a call attends. What transformers' own implementations heed is the mask, so it decides."""
    if mask is None:
        return keyword
    if not hasattr(mask, "paceline_window"):
        raise UnsupportedAttention("it builds an attention mask of its own")
    window: int | UnsupportedAttention | None = mask.paceline_window
    if isinstance(window, UnsupportedAttention):
        raise window
    return window


def _probe_mask(*, mask_function: Callable[..., torch.Tensor], **keywords: Any) -> torch.Tensor:
    """The mask as a tensor, labelled with the window that its function describes."""
    keywords.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    mask = sdpa_mask(mask_function=mask_function, **keywords)
    assert mask is not None
    window: int | UnsupportedAttention | None
    try:
        window = window_of(mask_function, mask.device)
    except UnsupportedAttention as reason:  # of no account until a layer uses the mask
        window = reason
    mask.paceline_window = window  # type: ignore[attr-defined]
    return mask


def window_of(mask_function: Callable[..., torch.Tensor], device: torch.device) -> int | None:
    """The window of a mask function of transformers, None when it is plainly causal.

    The function is asked far along a text, so that a window of any length shows. UnsupportedAttention when it is
    neither causal nor a sliding window (chunked, bidirectional, depending on the text).
    """
    keys = torch.arange(_FAR + 9, device=device)
    zero = torch.zeros((), dtype=torch.long, device=device)
    lengths = set()
    for position in (_FAR, _FAR + 1, _FAR + 7):  # a chunked mask reaches back differently far from each
        query = torch.tensor(position, device=device)
        try:
            visible = mask_function(zero, zero, query, keys).expand(keys.shape)
        except (IndexError, RuntimeError) as error:
            raise UnsupportedAttention("its attention mask depends on the text") from error
        length = int(visible.sum())
        if length == 0 or not bool(visible[position + 1 - length : position + 1].all()):
            raise UnsupportedAttention("its attention mask is neither causal nor a sliding window")
        lengths.add(None if length == position + 1 else length)
    if len(lengths) != 1:
        raise UnsupportedAttention("its attention is chunked, which is not a sliding window")
    return lengths.pop()
