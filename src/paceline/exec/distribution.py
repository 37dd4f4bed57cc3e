"""Batched operations on rows of logits or weights: largest entry, truncation, and drawing a token.

All of them work on any device, have no loop over rows, and give each row a result that does not depend on the other
rows. Weights are probabilities of any scale per row: at least 0, with a sum above 0. Ties go to the lowest token id.
"""

from __future__ import annotations

import torch

_BLOCK = 256
_FINE_BLOCK = 32
_CHUNK_ELEMENTS = 1 << 22  # bounds the scratch memory of truncation, which is a few times this many elements
_TINY = torch.finfo(torch.float32).tiny


def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest value [S] of each row of logits [S, vocab] and its lowest index (int64 [S]). NaN counts as largest.

    Works by blocks, since a plain maximum is vectorised on CPU and one that also tracks the index is not (8 times
    slower at 32 rows of 49,152).
    """
    vocab = logits.shape[1]
    whole = vocab - vocab % _BLOCK
    blocks = _in_blocks(logits[:, :whole], _BLOCK).amax(dim=-1)
    if whole < vocab:
        blocks = torch.cat([blocks, logits[:, whole:].amax(dim=-1, keepdim=True)], dim=1)
    first = blocks.argmax(dim=-1, keepdim=True) * _BLOCK
    columns = (first + torch.arange(_BLOCK, device=logits.device)).clamp_(max=vocab - 1)
    inside = logits.gather(1, columns)
    offset = inside.argmax(dim=-1, keepdim=True)
    return inside.gather(1, offset).squeeze(1), (first + offset).squeeze(1)


class BlockMaxima:
    """Rows of values with the maximum of every block of 32, which find the largest entries without a look at the rest.

    values: [S, vocab] float32.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        spare = -values.shape[1] % _FINE_BLOCK
        padded = torch.nn.functional.pad(values, (0, spare), value=-torch.inf) if spare else values
        self._blocks = _in_blocks(padded, _FINE_BLOCK)
        self._maxima = self._blocks.amax(dim=-1)

    def bound(self, rank: torch.Tensor) -> torch.Tensor:
        """A bound [S, 1] which at least `rank` (int64 [S, 1]) entries of each row reach, and seldom many more.

        It is the rank-th largest block maximum; with fewer blocks, the rank-th largest entry.
        """
        beyond = rank > self._maxima.shape[1]
        first = rank.masked_fill(beyond, 1)
        bound = self._maxima.topk(int(first.max()), dim=-1).values.gather(1, first - 1)
        rows = beyond.squeeze(1).nonzero().squeeze(1)
        if len(rows):
            rank = rank[rows]
            bound[rows] = self._values[rows].topk(int(rank.max()), dim=-1).values.gather(1, rank - 1)
        return bound

    def at_least(self, bound: torch.Tensor, fill: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries of each row that reach the row's bound [S, 1], in order of id.

        Returns (values, ids), both [S, K] with K the most entries any row has. Shorter rows end in `fill` and id 0.
        """
        rows = self._maxima.shape[0]
        block_row, block = (self._maxima >= bound).nonzero(as_tuple=True)
        blocks = self._blocks[block_row, block]
        hit, offset = (blocks >= bound[block_row]).nonzero(as_tuple=True)
        row = block_row[hit]
        counts = torch.bincount(row, minlength=rows)
        slot = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        values = self._blocks.new_full((rows, int(counts.max())), fill)
        ids = torch.zeros(values.shape, dtype=torch.int64, device=values.device)
        values[row, slot] = blocks[hit, offset]
        ids[row, slot] = block[hit] * _FINE_BLOCK + offset
        return values, ids


def apply_min_p(weights: torch.Tensor, min_p: torch.Tensor) -> None:
    """Zero in place the tokens below the share min_p (float32 [S], 0: off) of the row's most likely token."""
    floor = min_p[:, None] * weights.amax(dim=-1, keepdim=True)
    # A comparison written as floats, and a product: several times faster on CPU than filling by a mask.
    weights *= torch.ge(weights, floor, out=torch.empty_like(weights))


def draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Token (int64 [S]) at which the running sum of a row's weights passes `uniform` of its whole sum.

    weights: [S, vocab] float32. uniform: float64 [S], in [0, 1). A token of weight 0 is never drawn. The sum runs in
    order of token id: that order is the same however the values are rounded, whereas an order by probability swaps
    neighbours that are almost equal. So a rounding error in a row's distribution moves each border by that error and no
    more.
    """
    blocks = _in_blocks(_padded(weights), _BLOCK)
    sums = blocks.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    target = uniform[:, None] * sums[:, -1:]
    block = _first_above(sums, target)
    inside = blocks[torch.arange(len(blocks), device=blocks.device), block.squeeze(1)]
    passed = torch.where(block > 0, sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    offset = _first_above(inside.cumsum(dim=-1, dtype=torch.float64), target - passed)
    return (block * _BLOCK + offset).squeeze(1)


def draw_truncated(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """As `draw`, from each row's top k tokens and, of these, the most likely that hold a share top_p of their mass.

    top_k: int64 [S], the vocabulary's size where off. Exactly k tokens stay.
    top_p: float64 [S], 1 where off. The smallest such set stays (Holtzman et al., "The curious case of neural text
        degeneration", ICLR 2020).
    """
    step = max(1, _CHUNK_ELEMENTS // weights.shape[1])
    parts = [slice(first, first + step) for first in range(0, len(weights), step)]
    return torch.cat([_draw_from_few(weights[p], top_k[p], top_p[p], uniform[p], tries=(64, 512)) for p in parts])


def _draw_from_few(
    weights: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    uniform: torch.Tensor,
    tries: tuple[int, ...],
) -> torch.Tensor:
    """Draw from a few candidates per row, so that no row is sorted whole.

    With top-p alone their number is a guess: rows for which the first guess is too small try the next one.
    """
    maxima = BlockMaxima(weights)
    alone = (top_k >= weights.shape[1])[:, None]
    bound = maxima.bound(torch.where(alone, min(tries[0], weights.shape[1]), top_k[:, None]))
    # At least the smallest normal number: tokens whose probability vanished are no candidates.
    values, ids = maxima.at_least(bound.clamp_(min=_TINY), fill=0.0)
    found, order = values.sort(dim=-1, descending=True, stable=True)
    place = torch.arange(found.shape[1], device=found.device)
    found.masked_fill_(place >= top_k[:, None], 0.0)
    mass = found.cumsum(dim=-1, dtype=torch.float64)
    enough = top_p[:, None] * torch.where(alone, _row_sums(weights), mass[:, -1:])
    found.masked_fill_((mass - found >= enough) & (top_p[:, None] < 1.0) & (place > 0), 0.0)
    kept = torch.zeros_like(found).scatter_(1, order, found)  # in order of id again
    sums = kept.cumsum(dim=-1, dtype=torch.float64)
    tokens = ids.gather(1, _first_above(sums, uniform[:, None] * sums[:, -1:])).squeeze(1)
    again = (alone & (mass[:, -1:] < enough)).squeeze(1).nonzero().squeeze(1)
    if len(again):
        rest = weights[again], top_k[again], top_p[again], uniform[again]
        if len(tries) > 1:
            tokens[again] = _draw_from_few(*rest, tries=tries[1:])
        else:
            tokens[again] = draw(_nucleus(rest[0], rest[2]), rest[3])
    return tokens


def _nucleus(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Weights outside the top-p set zeroed, for flat distributions where that set is large.

    Bisects the bit patterns of positive floats, which are ordered as the floats are, for the largest bound that still
    leaves enough: 31 passes, a small part of what sorting the rows costs.
    """
    enough = top_p[:, None] * _row_sums(weights)
    low = torch.zeros(enough.shape, dtype=torch.int32, device=weights.device)  # leaves enough
    high = weights.amax(dim=-1, keepdim=True).view(torch.int32) + 1  # leaves nothing
    scratch = torch.empty_like(weights)  # comparisons written as floats are several times faster than masks on CPU
    for _ in range(31):
        middle = low + (high - low) // 2
        left = _row_sums(torch.ge(weights, middle.view(torch.float32), out=scratch).mul_(weights)) >= enough
        low, high = torch.where(left, middle, low), torch.where(left, high, middle)
    bound = low.view(torch.float32)
    above = torch.gt(weights, bound, out=scratch).mul_(weights)
    level = weights == bound  # of equal ones at the border, as many as it takes, lowest ids first
    wanted = ((enough - _row_sums(above)) / bound).ceil().clamp_(min=0.0)
    return above.add_(weights * (level & (level.cumsum(dim=-1, dtype=torch.int32) <= wanted)))


def _first_above(sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """First column whose running sum exceeds the target, or the last one that adds anything if rounding left none."""
    above = (sums > target) | (sums >= sums[:, -1:])
    return above.to(torch.uint8).argmax(dim=-1, keepdim=True)


def _row_sums(weights: torch.Tensor) -> torch.Tensor:
    """Sums (float64 [S, 1]), added up in the same order whatever the number of rows and threads."""
    return _in_blocks(_padded(weights), _BLOCK).sum(dim=-1).sum(dim=-1, keepdim=True, dtype=torch.float64)


def _padded(weights: torch.Tensor) -> torch.Tensor:
    spare = -weights.shape[1] % _BLOCK
    return torch.nn.functional.pad(weights, (0, spare)) if spare else weights


def _in_blocks(rows: torch.Tensor, size: int) -> torch.Tensor:
    return rows.reshape(rows.shape[0], -1, size)
