"""What the cache, and the tiers below it, have of a sequence that does not run."""

from __future__ import annotations

from paceline.core.batch import Batch
from paceline.core.keeper import Keeper
from paceline.core.promotions import Promotions
from paceline.core.request import Sequence
from paceline.kv.interface import KVCache, Match

NO_MATCH = Match(length=0, blocks=[], idle=0, tail_block=-1, node=None)


class Hits:
    """One per scheduler. Looking changes nothing."""

    def __init__(self, kv: KVCache, batch: Batch, keeper: Keeper, promotions: Promotions) -> None:
        self._kv = kv
        self._batch = batch
        self._keeper = keeper
        self._promotions = promotions

    def match(self, sequence: Sequence) -> Match:
        """What it need not compute if it starts now; one token at least is always left."""
        if sequence.kept_tokens:
            return self._keeper.match(sequence, NO_MATCH if sequence.kept_blocks is not None else self.lookup(sequence))
        match = self.lookup(sequence)
        if sequence.leader is not None:
            match = self._match_leader(sequence, match)
        return self._promotions.extend(sequence, match)

    def lookup(self, sequence: Sequence) -> Match:
        """What the device's cache has of it."""
        if sequence.request.params.prompt_logprobs is not None:
            return NO_MATCH  # every prompt position has to be computed
        if sequence.key is None:
            sequence.key = sequence.tokens.tobytes()
        return self._kv.match(sequence.key, int(sequence.tokens.size) - 1, sequence.namespace)

    def _match_leader(self, sequence: Sequence, match: Match) -> Match:
        """A fork copies the block its running leader's prompt ends in, which is not whole and so not in the cache."""
        leader, size = sequence.leader, self._batch.block_size
        length = int(sequence.tokens.size) - 1
        whole = length // size
        if leader is None or leader.row < 0 or leader.lease is not sequence.leader_lease:
            return match  # it left; its blocks are gone or written anew
        if len(match.blocks) < whole or match.length >= length:
            return match
        return match._replace(length=length, tail_block=int(self._batch.block_table[leader.row, whole]))
