"""The weights of a GGUF file under their Hugging Face names."""

from __future__ import annotations

import numpy as np
import torch

from paceline.exec.gguf_file import GGUFFile, same
from paceline.exec.stored import NAMES, StoredMatrix
from paceline.exec.weights import check_shape, checked, missing

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GGUFWeights:
    """See `Weights`. Undoes the reordering of query and key rows that the llama architecture's files carry."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self._names = self._translations()  # Hugging Face name -> GGUF name

    def _translations(self) -> dict[str, str]:
        pairs = list(_NAMES.items())
        for layer in range(int(self.file.get("block_count", 0))):
            pairs += [
                (f"model.layers.{layer}.{ours}", f"blk.{layer}.{theirs}") for ours, theirs in _LAYER_NAMES.items()
            ]
        return {
            f"{ours}.{part}": f"{theirs}.{part}"
            for ours, theirs in pairs
            for part in ("weight", "bias")
            if f"{theirs}.{part}" in self.file.tensors
        }

    def names(self) -> set[str]:
        return set(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, outermost first."""
        return self.file.tensors[self._known(name)].shape

    @property
    def quantised(self) -> bool:
        """Whether any matrix is in a format that `stored` gives."""
        return any(self.file.tensors[theirs].kind in NAMES for theirs in self._names.values())

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        theirs = self._known(name)
        return self._in_order(theirs, checked(torch.from_numpy(self.file.read(theirs)), name, shape, self.file.path))

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredMatrix | None:
        theirs = self._known(name)
        info = self.file.tensors[theirs]
        if info.kind not in NAMES or len(info.shape) != 2:
            return None
        check_shape(info.shape, name, shape, self.file.path)
        data = torch.from_numpy(np.array(self.file.raw(theirs)).reshape(info.shape[0], -1))
        return StoredMatrix(info.kind, self._in_order(theirs, data), info.shape[1])

    def _known(self, name: str) -> str:
        theirs = self._names.get(name)
        if theirs is None:
            raise missing(name, self.file.path)
        return theirs

    def _in_order(self, theirs: str, rows: torch.Tensor) -> torch.Tensor:
        if self.file.architecture != "llama" or not (".attn_q." in theirs or ".attn_k." in theirs):
            return rows
        heads = self.file.get("attention.head_count")
        if ".attn_k." in theirs:
            heads = same(self.file.get("attention.head_count_kv")) or heads
        return _pair_halves(rows, heads)


def _pair_halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """From rotary pairs side by side (as GGUF's llama stores them) to pairs half a head apart."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
