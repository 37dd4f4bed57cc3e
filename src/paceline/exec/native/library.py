"""Finds the kernel library for this machine, proves it, and declares its functions."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from paceline.errors import ConfigError

INSTRUCTION_SETS = ("avx512_bf16", "avx512", "avx2", "generic")  # best first

_VERSION = 2  # of the interface below; as in csrc/kernels.cpp
_FOLDER = Path(__file__).parent
_PROBE_SECONDS = 20.0
FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class Linear(Structure):
    """A packed linear map; see csrc/product.h."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("quantised", c_void_p),
    )


class Cache(Structure):
    """K/V of one layer; see csrc/attention.h."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("kv_heads", c_int32),
        ("key_size", c_int32),
        ("value_size", c_int32),
        ("value_stride", c_int32),
        ("eight", c_int32),
    )


class Places(Structure):
    """Where the tokens of a step sit; see csrc/attention.h."""

    _fields_ = (
        ("tokens", c_int32),
        ("rows", c_int32),
        ("block_size", c_int32),
        ("table_stride", c_int32),
        ("slots", c_void_p),
        ("query_starts", c_void_p),
        ("lengths", c_void_p),
        ("block_table", c_void_p),
    )


class DecoderLayer(Structure):
    """See csrc/decoder.h."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("qkv", Linear),
        ("qk_norm", c_void_p),
        ("output", Linear),
        ("mlp_norm", c_void_p),
        ("gate_up", Linear),
        ("down", Linear),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int64),
    )


class Decoder(Structure):
    """See csrc/decoder.h."""

    _fields_ = (
        ("format", c_int32),
        ("layers", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_size", c_int32),
        ("value_stride", c_int32),
        ("kv_eight", c_int32),
        ("intermediate", c_int32),
        ("activation", c_int32),
        ("embedding_packed", c_int32),
        ("epsilon", c_float),
        ("rope_scale", c_float),
        ("frequencies", c_void_p),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("layer", POINTER(DecoderLayer)),
    )


class Step(Structure):
    """See csrc/decoder.h."""

    _fields_ = (
        ("places", Places),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("hidden", c_void_p),
        ("threads", c_int32),
    )


_FUNCTIONS = {
    "paceline_activation_bytes": (c_int32, [c_int32]),
    "paceline_pack": (None, [c_int32, c_void_p, c_int32, c_int32, c_void_p, c_int32]),
    "paceline_rows": (None, [c_int32, c_void_p, c_void_p, c_int32, c_int32, c_void_p]),
    "paceline_panel_bytes": (c_int64, [c_int32, c_int32]),
    "paceline_file_row_bytes": (c_int64, [c_int32, c_int32]),
    "paceline_pack_quantised": (None, [c_int32, c_void_p, c_int32, c_int32, c_void_p]),
    "paceline_quantise": (None, [c_int32, c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_int32]),
    "paceline_quantised_rows": (None, [c_void_p, c_void_p, c_int32, c_int32, c_void_p]),
    "paceline_linear": (
        None,
        [c_int32, POINTER(Linear), c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_int32],
    ),
    "paceline_largest": (
        None,
        [c_int32, POINTER(Linear), c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_int32],
    ),
    "paceline_attend": (
        None,
        [
            *(c_int32, POINTER(Cache), POINTER(Places), c_void_p, c_void_p, c_void_p),
            *(c_int32, c_float, c_float, c_int64, c_void_p, c_void_p, c_int32),
        ],
    ),
    "paceline_forward": (None, [POINTER(Decoder), POINTER(Step), c_void_p]),
    "paceline_workspace": (c_void_p, []),
    "paceline_free_workspace": (None, [c_void_p]),
    "paceline_use_runtime": (None, [c_void_p]),
    "paceline_supported": (c_int32, []),
    "paceline_version": (c_int32, []),
}


class Kernels:
    """A loaded library: its functions as attributes, and the workspace its calls share (one call at a time)."""

    def __init__(self, name: str, library: ctypes.CDLL) -> None:
        self.name = name
        for function, (result, arguments) in _FUNCTIONS.items():
            bound = getattr(library, function)
            bound.restype, bound.argtypes = result, arguments
        self.pack = library.paceline_pack
        self.rows = library.paceline_rows
        self.panel_bytes = library.paceline_panel_bytes
        self.file_row_bytes = library.paceline_file_row_bytes
        self.pack_quantised = library.paceline_pack_quantised
        self.quantise = library.paceline_quantise
        self.quantised_rows = library.paceline_quantised_rows
        self.linear = library.paceline_linear
        self.largest = library.paceline_largest
        self.attend = library.paceline_attend
        self.forward = library.paceline_forward
        self.workspace = c_void_p(library.paceline_workspace())
        self._library = library

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What the left side of a product is held in: float32, or bfloat16 where the machine multiplies that."""
        same = self._library.paceline_activation_bytes(FORMATS[dtype]) == dtype.itemsize
        return dtype if same else torch.float32


class Choice(NamedTuple):
    kernels: Kernels | None
    reason: str  # one line for the log


def choose_kernels(name: str, device: torch.device) -> Choice:
    """The kernels `--kernels` stands for on a device. `auto`: the best that prove themselves, or none.

    Raises ConfigError when kernels asked for by name cannot run here.
    """
    if name == "off":
        return Choice(None, "off")
    if device.type != "cpu":
        if name == "auto":
            return Choice(None, "off (they are for the CPU)")
        raise ConfigError("--kernels", name, f"auto or off on {device.type}")
    if name != "auto":
        kernels, reason = _load(name)
        if kernels is None:
            raise ConfigError("--kernels", name, f"auto or off here: {reason}")
        return Choice(kernels, name)
    reasons = []
    for candidate in INSTRUCTION_SETS:
        kernels, reason = _load(candidate)
        if kernels is not None:
            return Choice(kernels, ", ".join([candidate, *reasons]))
        if reason not in (_NOT_BUILT, _NOT_HERE):
            reasons.append(f"not {candidate}: {reason}")
    return Choice(None, ", ".join(["off", *(reasons or [_NOT_BUILT])]))


_NOT_BUILT = "not built; install with a C++ compiler at hand"
_NOT_HERE = "the processor does not have these instructions"


@cache
def _load(name: str) -> tuple[Kernels | None, str]:
    """Once per process: a library keeps its state, and the proof costs a process."""
    path = _FOLDER / f"kernels_{name}.so"
    if not path.exists():
        return None, _NOT_BUILT
    try:
        library = ctypes.CDLL(str(path))
        if library.paceline_version() != _VERSION:
            return None, "built from another version; install again"
    except (OSError, AttributeError) as error:
        return None, f"not loadable ({error})"
    if not library.paceline_supported():
        return None, _NOT_HERE
    complaint = prove(path)
    if complaint is not None:
        return None, complaint
    kernels = Kernels(name, library)
    _share_openmp(library)
    return kernels, ""


def prove(path: Path) -> str | None:
    """Lets the library check itself in a process of its own; what went wrong, or None."""
    command = [sys.executable, "-I", "-S", str(_FOLDER / "probe.py"), str(path)]
    try:
        status = subprocess.run(command, timeout=_PROBE_SECONDS, capture_output=True, check=False).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its self-check did not run ({error})"
    if status < 0:
        return f"its self-check died of signal {-status}"
    return None if status == 0 else "its self-check gave wrong results"


def _share_openmp(library: ctypes.CDLL) -> None:
    """Hand over the OpenMP runtime torch computes with. Without it (macOS) the library starts threads of its own."""
    path = openmp_path()
    if path is None:
        return
    parallel = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
    if parallel is not None:
        library.paceline_use_runtime(ctypes.cast(parallel, c_void_p))


def openmp_path() -> str | None:
    """The file of the OpenMP runtime that is in this process, loaded by torch."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    found = sorted(path for path in paths if Path(path).name.startswith(("libgomp", "libiomp5", "libomp")))
    return found[0] if found else None
