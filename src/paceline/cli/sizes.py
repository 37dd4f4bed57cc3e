"""Sizes as people type them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


LEAST_BARE = 2**16  # bytes: who types a smaller number alone has left out the unit


def parse_memory(text: str | int) -> int:
    """As `parse_size`; ValueError also for a number alone that is too small to be meant in bytes."""
    size = parse_size(text)
    if str(text).strip().isdigit() and size < LEAST_BARE:
        raise ValueError(
            f"{size} alone is {size} bytes, and a block of KV takes more; give a unit, as {size}GiB or 512MiB"
        )
    return size


def parse_space(text: str | int) -> int:
    """As `parse_size`, but a number without a unit is in GiB, as in vLLM's --swap-space."""
    bare = re.fullmatch(r"\s*\d{1,4}(?:\.\d{1,6})?\s*", str(text))
    return parse_size(f"{str(text).strip()}GiB" if bare else text)


def parse_size(text: str | int) -> int:
    """Bytes: 4096, 512MiB, 2G (2 x 1024^3), 2GB (2 x 1000^3), 1.5GiB. ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?)(i?b?)\s*", str(text).lower())
    if match is None or (match[3] == "ib" and not match[2]) or (match[3] == "i" and not match[2]):
        raise ValueError(f"{text!r} is not a size; write bytes, or a number with KiB, MiB or GiB, such as 512MiB")
    unit = _DECIMAL[match[2]] if match[3] == "b" and match[2] else _UNITS[match[2]]
    return int(float(match[1]) * unit)
