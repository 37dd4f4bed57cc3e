"""What the tiers below the device have of waiting sequences, and whether to load it or to compute it again."""

from __future__ import annotations

from paceline.core.costs import Costs
from paceline.core.request import Sequence
from paceline.kv.content import extend_keys
from paceline.kv.interface import Match
from paceline.kv.tiers import Tiers

_TOKEN_BYTES = 4


class Promotions:
    """One per scheduler. A hit goes on past the device's into host blocks; what lies on disk is read to the host first,
    while the sequence waits a step longer.

    `load`: auto (what takes less time to load than to compute), always or never.
    """

    def __init__(self, tiers: Tiers, costs: Costs, block_size: int, load: str) -> None:
        self.tiers = tiers
        self.costs = costs
        self.block_size = block_size
        self.load = load

    def extend(self, sequence: Sequence, match: Match) -> Match:
        """The match with what the host has after it: `length` counts it, `blocks` does not. Changes nothing."""
        if not self.tiers.cached or self.load == "never":
            return match
        first = len(match.blocks)
        count, _, _ = self.tiers.run(self._keys(sequence), first)
        length = (first + count) * self.block_size
        if length <= match.length or not self._pays(length - match.length, count, 0):
            return match
        return match._replace(length=length, tail_block=-1)

    def fetch(self, sequence: Sequence, match: Match) -> str | None:
        """Have this step read what comes next of the sequence from disk. The reason to wait; None: nothing to read.

        Once for each time it starts, so that nobody waits for ever where the host is too small.
        """
        if sequence.fetched or sequence.kept_tokens or not self.tiers.disk or self.load == "never":
            return None
        keys, first = self._keys(sequence), len(match.blocks)
        near, count, missing = self.tiers.run(keys, first)
        if not missing or not self._pays((first + count) * self.block_size - match.length, count, len(missing)):
            return None
        self.tiers.pin(keys[first : first + near])
        coming = self.tiers.fetch(missing)
        if not coming:
            return None
        sequence.fetched = True
        return f"disk: {coming} blocks of its prefix are being read"

    def take(self, sequence: Sequence, match: Match) -> list[int]:
        """The sequence starts with `match`: the host blocks to load behind those on the device, safe for this step."""
        first = len(match.blocks)
        count = match.length // self.block_size - first
        if count <= 0 or match.tail_block >= 0 or sequence.kept_tokens:
            return []
        return self.tiers.pin(self._keys(sequence)[first : first + count])

    def _keys(self, sequence: Sequence) -> list[bytes]:
        """The content keys of the whole blocks of its tokens, but for the last token, which is always computed."""
        key = sequence.key
        if key is None:
            return []  # it asks for no hits
        known, keys = sequence.content_keys
        if known is not key:
            keys = []
            width = self.block_size * _TOKEN_BYTES
            whole = (len(key) - _TOKEN_BYTES) // width
            extend_keys(keys, self.tiers.root(sequence.namespace), key, width, whole)
            sequence.content_keys = (key, keys)
        return keys

    def _pays(self, tokens: int, host: int, disk: int) -> bool:
        """Does loading take less time, by what was measured? What was not measured yet is worth a try."""
        if self.load == "always":
            return True
        load, compute = self.costs.load(host, disk), self.costs.compute(tokens)
        return load is None or compute is None or load < compute
