"""Compiles the native kernels, once for each instruction set. Everything else about the package is in pyproject.toml.

They are plain shared libraries, not extension modules: paceline.exec.native loads one by name at run time.
Each is optional: what this compiler cannot build is left out, and without a compiler the package installs all the same.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

NATIVE = Path("src/paceline/exec/native")
SOURCES = NATIVE / "csrc"
COMMON = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fvisibility=hidden",
    "-ffp-contract=fast",  # multiply and add in one rounding, in every compiler
    "-Wno-psabi",
    "-Wno-uninitialized",  # GCC sees them in its own intrinsics
    "-Wno-maybe-uninitialized",
]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
X86 = {
    "avx512_bf16": [*AVX512, "-mavx512bf16", "-mavx512vnni"],
    "avx512": AVX512,
    "avx2": AVX2,
    "generic": [],
}
OTHERS = {"generic": []}  # NEON is part of every 64-bit ARM, and the compiler uses it unasked


class BuildLibraries(build_ext):
    """Builds extensions as bare shared libraries with names free of the interpreter's tags, all at once."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or True

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        target = self.get_ext_fullpath(ext.name)
        if not self.force and not newer_group([*ext.sources, *ext.depends, __file__], target):
            return
        objects = self.compiler.compile(
            ext.sources,
            output_dir=str(Path(self.build_temp) / ext.name),  # all have the same source
            extra_postargs=ext.extra_compile_args,
            depends=ext.depends,
        )
        self.compiler.link_shared_object(objects, target, target_lang="c++")


def libraries() -> list[Extension]:
    if sys.platform == "win32":
        return []
    sets = X86 if platform.machine().lower() in ("x86_64", "amd64") else OTHERS
    return [
        Extension(
            f"paceline.exec.native.kernels_{name}",
            [str(SOURCES / "kernels.cpp")],
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            extra_compile_args=[*COMMON, *flags],
            language="c++",
            optional=True,
        )
        for name, flags in sets.items()
    ]


setup(ext_modules=libraries(), cmdclass={"build_ext": BuildLibraries})
