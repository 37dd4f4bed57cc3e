"""Proof of a radix cache's accounting, from its trees and the sequences that use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from paceline.kv.interface import Lease
from paceline.kv.radix_node import TOKEN_BYTES, RadixNode

if TYPE_CHECKING:
    from paceline.kv.radix import RadixCache
    from paceline.kv.radix_lease import RadixLease


def check(cache: RadixCache, held: Iterable[tuple[Lease, Sequence[int]]]) -> None:
    """AssertionError, naming the first thing that differs, unless all of these hold:

    every block has one owner (the free list, one node, or one sequence) and free + cached + held is the total; each
    node's holder count is the number of leases whose path includes it, and shrinks downwards; block tables agree
    with the trees; keys, children, sorted keys and the eviction queue agree with each other.
    """
    owners: Counter[int] = Counter(cache.pool.free)
    holders: Counter[int] = Counter()
    nodes: dict[int, RadixNode] = {}
    for root in cache.roots.values():
        for node in _walk(root, cache.block_size * TOKEN_BYTES):
            nodes[id(node)] = node
    attached = set(nodes)
    for lease, table in held:
        owners.update(_check_lease(cast("RadixLease", lease), list(table), holders, nodes))
    for key, node in nodes.items():
        owners.update(node.blocks)
        _require(
            node.holders == holders[key],
            f"{_name(node)} counts {node.holders} holders, {holders[key]} leases hold it",
        )
        if key not in attached:
            _require(node.holders > 0, f"{_name(node)} was forgotten by reset, nobody holds it, yet it has blocks")
    _check_owners(owners, cache.num_blocks)
    _check_counters(cache, [nodes[key] for key in attached], owners)


def _walk(root: RadixNode, block_bytes: int) -> list[RadixNode]:
    """All nodes of one tree, each checked against its parent."""
    found = []
    stack = [root]
    while stack:
        node = stack.pop()
        found.append(node)
        name = _name(node)
        _require(
            len(node.key) == len(node.blocks) * block_bytes,
            f"{name} has {len(node.key)} key bytes for {len(node.blocks)} blocks",
        )
        _require(node.order == sorted(node.children), f"{name}: sorted child keys differ from its children")
        _require(bool(node.blocks) == (node.parent is not None), f"{name}: a root has no blocks, other nodes have some")
        for first, child in node.children.items():
            _require(child.parent is node, f"{_name(child)}: wrong parent")
            _require(child.start == node.end, f"{_name(child)} starts at {child.start}, its parent ends at {node.end}")
            _require(bytes(child.key[:block_bytes]) == first, f"{_name(child)} is entered under another key")
            _require(child.holders <= node.holders, f"{_name(child)} has more holders than the blocks before it")
            stack.append(child)
    _require(root.holders > 0 or bool(root.children), "a namespace without leases or blocks was not forgotten")
    return found


def _check_lease(lease: RadixLease, table: list[int], holders: Counter[int], nodes: dict[int, RadixNode]) -> list[int]:
    """Count the lease's path in `holders` and add what is in no tree any more to `nodes`. Returns private blocks."""
    node: RadixNode | None = lease.node
    assert node is not None, "a released lease is said to be live"
    _require(node.end == lease.registered, f"a lease with {lease.registered} blocks ends at {node.end}")
    _require(len(table) >= lease.registered, f"a table of {len(table)} blocks has {lease.registered} registered")
    path: list[int] = []
    while node is not None:
        holders[id(node)] += 1
        nodes.setdefault(id(node), node)
        path[:0] = node.blocks
        node = node.parent
    twins = dict(zip(lease.positions, zip(lease.twins, lease.shadow, strict=True), strict=True))
    _require(lease.positions == sorted(twins), "positions of twins are not ascending")
    for position, block in enumerate(path):
        own, cached = twins.pop(position, (block, block))
        _require(table[position] == own, f"block {position} of a table is {table[position]}, its lease says {own}")
        _require(cached == block, f"block {position} of a lease shadows {cached}, the tree has {block}")
    _require(not twins, f"twins beyond the path: {twins}")
    return table[lease.registered :] + lease.twins


def _check_owners(owners: Counter[int], num_blocks: int) -> None:
    twice = sorted(block for block, count in owners.items() if count > 1)
    _require(not twice, f"blocks with two owners: {twice}")
    lost = sorted(set(range(num_blocks)) - set(owners))
    _require(not lost, f"blocks without an owner: {lost}")
    _require(len(owners) == num_blocks, f"blocks that do not exist: {sorted(set(owners) - set(range(num_blocks)))}")


def _check_counters(cache: RadixCache, nodes: list[RadixNode], owners: Counter[int]) -> None:
    idle = sum(len(node.blocks) for node in nodes if not node.holders)
    _require(cache.cached == idle, f"`cached` is {cache.cached}, {idle} blocks are indexed and not held")
    held = len(owners) - idle - len(cache.pool.free)
    _require(
        cache.available + held == cache.num_blocks,
        f"available {cache.available} + held {held} is not {cache.num_blocks}",
    )
    for node in nodes:
        evictable = not node.holders and not node.children and node.parent is not None
        _require(node.queued or not evictable, f"{_name(node)} could be evicted but is not queued")


def _name(node: RadixNode) -> str:
    return f"node of blocks {node.blocks[:3]}{'...' if len(node.blocks) > 3 else ''} at {node.start}"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
