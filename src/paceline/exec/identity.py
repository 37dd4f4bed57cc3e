"""What K/V depend on besides tokens: which model, in which numbers, laid out how."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from paceline.exec.source import ModelSource

_HEAD = 1 << 20  # bytes of each weights file that are read; the rest is known by size and time
_VERSION = 1  # of how blocks are laid out, beyond what is told below
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


def kv_identity(source: ModelSource, parts: list[str], tensors: list[torch.Tensor]) -> bytes:
    """[32] equal only where blocks may be exchanged. `parts`: names of what computes them; `tensors`: the K/V, whose
    shapes (but for how many blocks there are) and number format are told."""
    digest = hashlib.sha256()

    def tell(*values: object) -> None:
        digest.update(json.dumps(values, sort_keys=True, default=str).encode() + b"\n")

    tell(_VERSION, source.config, parts, [[tuple(tensor.shape[1:]), str(tensor.dtype)] for tensor in tensors])
    for path in _weights(source.path):
        status = path.stat()
        with path.open("rb") as file:
            tell(path.name, status.st_size, status.st_mtime_ns, hashlib.sha256(file.read(_HEAD)).hexdigest())
    return digest.digest()


def _weights(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for pattern in _WEIGHTS for file in path.glob(pattern))
