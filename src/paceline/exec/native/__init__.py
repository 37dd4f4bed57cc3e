"""Native kernels: plain C++ behind ctypes, compiled with the package, optional, chosen by instruction set."""

from paceline.exec.native.library import Kernels, choose_kernels

__all__ = ["Kernels", "choose_kernels"]
