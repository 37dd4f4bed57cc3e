"""One uniform number per (seed, position): the only randomness in Paceline's sampling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits, one for each pair of seed [S] and position [S].

    The generator is counter based (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): it keeps no
    state, so a number depends on nothing but its pair, and a sequence finds the same numbers again in any batch, after
    a preemption and in another process. It is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) started from a hash of
    the seed. The hash comes first because sibling sequences have seeds that differ by SplitMix64's own increment, and
    would otherwise walk one and the same stream a position apart.
    """
    start = _murmur_finish(seeds + _GOLDEN)
    bits = _splitmix_finish(start + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    numbers: npt.NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _murmur_finish(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    value = value ^ (value >> np.uint64(33))
    return value


def _splitmix_finish(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value = value ^ (value >> np.uint64(31))
    return value
