"""The key-value header of a GGUF file, read in milliseconds: no tensors, no numpy views per string."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from paceline.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Every key of the header (GGUF versions 2 and 3) with its value: str, int, float, bool, or a list of them.

    Raises ModelError naming the file when it is not a GGUF file or ends within the header.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, path).header()
    except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
        raise ModelError(f"{path}: cannot be read ({error}); give a readable, complete .gguf file") from error
    except (struct.error, UnicodeDecodeError, MemoryError, OverflowError) as error:
        raise ModelError(f"{path}: the GGUF header is damaged or cut off; download the file again") from error


class _Reader:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def header(self) -> dict[str, Any]:
        if self.data[:4] != b"GGUF":
            raise ModelError(f"{self.path}: not a GGUF file; give a .gguf file or a model directory")
        self.at = 4
        version, _tensors, pairs = self._unpack("<IQQ")
        if version not in (2, 3):
            raise ModelError(f"{self.path}: GGUF version {version} is not supported; convert it to version 3")
        metadata = {}
        for _ in range(pairs):
            key = self._string()
            metadata[key] = self._value(self._unpack("<I")[0])
        return metadata

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        end = self.at + length
        if end > len(self.data):
            raise struct.error("string past the end")
        text = self.data[self.at : end].decode("utf-8")
        self.at = end
        return text

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, count = self._unpack("<IQ")
            if inner in _SCALARS:
                return list(self._unpack(f"<{count}{_SCALARS[inner]}"))
            return [self._value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise struct.error(f"unknown value type {kind}")
        return self._unpack("<" + _SCALARS[kind])[0]
