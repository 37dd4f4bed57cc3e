"""Checkpoints: named tensors out of safetensors or PyTorch files, checked as they are read."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from paceline.errors import ModelError

if TYPE_CHECKING:
    from paceline.exec.stored import StoredMatrix


class Weights(Protocol):
    """The tensors of a checkpoint under their Hugging Face names."""

    def names(self) -> set[str]: ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One tensor on the CPU, in the checkpoint's number format. ModelError when missing or of another shape."""
        ...

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredMatrix | None:
        """The same as it is stored, where that is a block format the native kernels multiply by; None: it is not."""
        ...


class FileWeights:
    """Tensors of a directory in Hugging Face layout; each file is opened once and mapped, not read."""

    def __init__(self, files: dict[str, Path], open_file: Callable[[Path], dict[str, Any]], where: Path) -> None:
        self._files = files  # tensor name -> file
        self._open_file = open_file
        self._opened: dict[Path, dict[str, Any]] = {}
        self._where = where

    def names(self) -> set[str]:
        return set(self._files)

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        path = self._files.get(name)
        if path is None:
            raise missing(name, self._where)
        if path not in self._opened:
            self._opened[path] = self._open_file(path)
        found = self._opened[path].get(name)
        if found is None:
            raise missing(name, path)
        return checked(found() if callable(found) else found, name, shape, path)

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredMatrix | None:
        return None


def missing(name: str, where: Path) -> ModelError:
    return ModelError(f"{where}: the tensor {name} is missing; download the checkpoint again")


def checked(tensor: torch.Tensor, name: str, shape: tuple[int, ...], where: Path) -> torch.Tensor:
    check_shape(tuple(tensor.shape), name, shape, where)
    return tensor


def check_shape(found: tuple[int, ...], name: str, shape: tuple[int, ...], where: Path) -> None:
    if found != shape:
        raise ModelError(
            f"{where}: the tensor {name} has shape {list(found)} and the model's config asks for {list(shape)}; "
            "config and weights do not belong together"
        )


def directory_weights(directory: Path) -> FileWeights:
    """The weights of a directory: safetensors first, sharded or not, then PyTorch files.

    Raises ModelError naming the file on anything missing, truncated or unreadable.
    """
    for single, index, open_file in (
        ("model.safetensors", "model.safetensors.index.json", _open_safetensors),
        ("pytorch_model.bin", "pytorch_model.bin.index.json", _open_pytorch),
    ):
        if (directory / index).exists():
            return FileWeights(_read_index(directory / index), open_file, directory)
        if (directory / single).exists():
            path = directory / single
            opened = open_file(path)
            weights = FileWeights(dict.fromkeys(opened, path), open_file, path)
            weights._opened[path] = opened
            return weights
    raise ModelError(
        f"{directory}: no weights here; a model directory holds model.safetensors, model.safetensors.index.json or "
        "pytorch_model.bin"
    )


def _read_index(path: Path) -> dict[str, Path]:
    try:
        weight_map = json.loads(path.read_text("utf-8"))["weight_map"]
        files = {str(name): path.parent / str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ModelError(f"{path}: not a readable weight index ({error}); download it again") from error
    for file in sorted(set(files.values())):
        if not file.exists():
            raise ModelError(f"{file}: missing, though {path.name} lists it; download the checkpoint again")
    return files


def _open_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(path, framework="pt")
        return {name: _later(opened, name) for name in opened.keys()}  # noqa: SIM118  it is no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path}: corrupt or truncated ({error}); download it again") from error


def _later(opened: Any, name: str) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        tensor: torch.Tensor = opened.get_tensor(name)
        return tensor

    return read


def _open_pytorch(path: Path) -> dict[str, Any]:
    try:
        # Files from before torch 1.6 are no zip archives and cannot be mapped.
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch raises many kinds, from pickle, zip and its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"{path}: corrupt, truncated or not a plain weight file ({reason}); download it again"
        ) from error
    if not isinstance(tensors, dict):
        raise ModelError(f"{path}: holds a {type(tensors).__name__}, not named tensors; use a state dict")
    return tensors
