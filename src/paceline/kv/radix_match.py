"""Finding the longest cached prefix in a radix tree, by comparing memory."""

from __future__ import annotations

from array import array

from paceline.kv.interface import Match
from paceline.kv.radix_node import TOKEN_BYTES, RadixNode, common_tokens


def find(root: RadixNode, tokens: bytes, length: int, block_size: int, epoch: int) -> Match:
    """The longest cached prefix of the first `length` tokens (int32 as bytes), in step `epoch`.

    O(n + log c) for n nodes on the path and c children of the last, plus memcmp.
    """
    node, size = root, block_size * TOKEN_BYTES
    end = length * TOKEN_BYTES
    at = 0
    blocks = array("i")
    idle = 0
    while at + size <= end:
        child = node.children.get(tokens[at : at + size])
        if child is None:
            break
        node = child
        after = at + len(node.key)
        if after > end or not tokens.startswith(node.key, at):
            return _inside(node, tokens[at:end], blocks, idle, block_size, epoch)
        blocks += node.blocks
        if not node.holders:
            idle += len(node.blocks)
        at = after
    tail, tail_block = 0, -1
    if node.order and at < end:
        tail, tail_block = node.longest_tail(tokens[at : min(at + size, end)], epoch)
    return Match(at // TOKEN_BYTES + tail, blocks, idle, tail_block, node)


def _inside(node: RadixNode, rest: bytes, blocks: array[int], idle: int, block_size: int, epoch: int) -> Match:
    """The match ends inside the edge of `node`, whose first block agrees with `rest`."""
    common = len(rest) // TOKEN_BYTES if node.key.startswith(rest) else common_tokens(rest, node.key)
    whole, tail = divmod(common, block_size)
    blocks += node.blocks[:whole]
    if not node.holders:
        idle += whole
    tail_block = -1
    if tail and (node.epoch != epoch or whole < node.fresh):
        tail_block = node.blocks[whole]
    else:
        tail = 0
    return Match(len(blocks) * block_size + tail, blocks, idle, tail_block, node)


def goes_on(match: Match, block: bytes) -> bool:
    """Is there a cached block with these tokens behind the whole blocks of the match? O(1)."""
    node: RadixNode | None = match.node
    if node is None:
        return False
    count = len(match.blocks) - node.start
    if count >= len(node.blocks):
        return block in node.children
    return node.key[count * len(block) : (count + 1) * len(block)] == block
