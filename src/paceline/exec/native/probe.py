"""Run by file name in a process of its own: loads one kernel library and lets it check itself.

Status 0: trustworthy. A machine that advertises an instruction and faults on it ends this process, not the caller's.
"""

import ctypes
import sys

_WRONG_ANSWER = 3

if __name__ == "__main__":
    library = ctypes.CDLL(sys.argv[1])
    sys.exit(_WRONG_ANSWER if library.paceline_check() else 0)
