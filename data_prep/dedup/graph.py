"""The graph of near-duplicates: documents are nodes, and sharing a bucket makes an edge or a candidate pair.

Its connected components fit no memory. They are found by alternating large-star and small-star (Kiveris et al. 2014):

- large-star: every node u connects its larger neighbours to the smallest node m of its neighbourhood and itself;
- small-star: every node u connects itself and its smaller neighbours to the smallest of them.

Neither changes which nodes are connected. When both change nothing, every component is a star around its smallest node:
the document that comes first in the corpus. That takes O(log^2 n) rounds (theorem 1 there), in practice few.

Edges lie on disk, and a task holds the nodes of one range of document numbers. It goes over its edges twice: first for
the smallest neighbour of each of its nodes, then to write new edges. It holds one block of edges, so a node may have
any number of neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.dedup.records import (
    Records,
    RecordWriter,
    hash_range,
    in_blocks,
    iterate_repeats,
    join,
    read_range,
)

EDGES = {"node": "uint64", "other": "uint64"}
"""Indices of two documents that belong together."""


def link_documents(records: Path, partition: int, num_partitions: int, path: Path) -> ShardResult:
    """Write an edge from every document in a bucket to the first one, and back, for one range of buckets."""
    buckets = read_range(records, *hash_range(partition, num_partitions))
    with RecordWriter(path, EDGES) as writer:
        for repeats, firsts in iterate_repeats(buckets, ("bucket",)):
            writer.write(both_ways(distinct(repeats["document"], firsts)))
    return ShardResult(rows=writer.num_records)


def distinct(node: np.ndarray, other: np.ndarray) -> Records:
    """Every edge once."""
    order = np.lexsort([other, node])
    node, other = node[order], other[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (node[1:] != node[:-1]) | (other[1:] != other[:-1])
    return {"node": node[is_new], "other": other[is_new]}


def both_ways(edges: Records) -> Records:
    """Every edge also from its other end."""
    node, other = edges["node"], edges["other"]
    return {"node": np.concatenate([node, other]), "other": np.concatenate([other, node])}


PAIRED_BEFORE = 16
"""Each document is paired with the first of its bucket and with this many predecessors, so that pairs grow linearly
with the records, not with the square of a bucket."""


def pair_documents(records: Path, partition: int, num_partitions: int, path: Path) -> ShardResult:
    """Write the pairs of one range of buckets, each also from its other end."""
    buckets = read_range(records, *hash_range(partition, num_partitions))
    seen: Records = {}
    with RecordWriter(path, EDGES) as writer:
        for block in in_blocks(buckets):
            joined = join([seen, block]) if seen else block
            is_new = np.arange(len(joined["bucket"])) >= len(joined["bucket"]) - len(block["bucket"])
            # Stable: in a bucket, what was seen comes first, then the order of the corpus.
            order = np.argsort(joined["bucket"], kind="stable")
            bucket, document, is_new = joined["bucket"][order], joined["document"][order], is_new[order]
            starts = np.flatnonzero(np.concatenate([[True], bucket[1:] != bucket[:-1]]))
            sizes = np.diff(np.append(starts, len(bucket)))
            # How many documents of its bucket come before and after each.
            before = np.arange(len(bucket)) - np.repeat(starts, sizes)
            after = np.repeat(sizes, sizes) - before - 1
            for distance in range(1, PAIRED_BEFORE + 1):
                own = np.flatnonzero(is_new & (before >= distance))
                writer.write(both_ways(distinct(document[own], document[own - distance])))
            own = np.flatnonzero(is_new & (before > PAIRED_BEFORE))
            writer.write(both_ways(distinct(document[own], document[own - before[own]])))
            needed = (before == 0) | (after < PAIRED_BEFORE)
            seen = {"bucket": bucket[needed], "document": document[needed]}
    return ShardResult(rows=writer.num_records)


def large_star(edges: Path, first: int, last: int, path: Path) -> ShardResult:
    """Write, for the larger neighbours of every node of a range, their edges to its smallest neighbour.

    Args:
        edges: directory of edges; for large-star both directions of each, for small-star that to the smaller node.
        first: the lowest document number in the range; `last` the highest.
    """
    nodes, smallest = _smallest_neighbours(edges, first, last)
    num_changed = 0
    with RecordWriter(path, EDGES) as writer:
        for block in in_blocks(read_range(edges, first, last)):
            larger = block["other"] > block["node"]
            node, other = block["node"][larger], block["other"][larger]
            centre = smallest[np.searchsorted(nodes, node)]
            num_changed += int((centre != node).sum())
            writer.write(distinct(other, centre))
    return ShardResult(rows=writer.num_records, stats={"changed": num_changed})


def small_star(edges: Path, first: int, last: int, path: Path) -> ShardResult:
    """Write, for every node of the range and its smaller neighbours, their edges to the smallest; both ways."""
    nodes, smallest = _smallest_neighbours(edges, first, last)
    num_changed = 0
    with RecordWriter(path, EDGES) as writer:
        for block in in_blocks(read_range(edges, first, last)):
            centre = smallest[np.searchsorted(nodes, block["node"])]
            moved = block["other"] != centre
            num_changed += int(moved.sum())
            leaves = np.concatenate([block["node"], block["other"][moved]])
            writer.write(both_ways(distinct(leaves, np.concatenate([centre, centre[moved]]))))
    return ShardResult(rows=writer.num_records, stats={"changed": num_changed})


def list_leaves(edges: Path, first: int, last: int, path: Path) -> ShardResult:
    """Write the nodes of the range that have a smaller neighbour."""
    with RecordWriter(path, {"document": "uint64"}) as writer:
        nodes, smallest = _smallest_neighbours(edges, first, last)
        writer.write({"document": nodes[smallest < nodes]})
    return ShardResult(rows=writer.num_records)


Operation = Callable[[Path, int, int, Path], ShardResult]
ROUND: tuple[tuple[str, Operation], ...] = (("large", large_star), ("small", small_star))
"""The operations of a round, in order; the first reads and the second writes edges in both directions."""


def _smallest_neighbours(edges: Path, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """[n] nodes of the range that have edges, ascending, and [n] the smallest of each one's neighbours and itself."""
    nodes = smallest = np.empty(0, dtype=np.uint64)
    for block in in_blocks(read_range(edges, first, last)):
        node = np.concatenate([nodes, block["node"]])
        least = np.concatenate([smallest, np.minimum(block["node"], block["other"])])
        order = np.argsort(node, kind="stable")
        node, least = node[order], least[order]
        starts = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
        nodes, smallest = node[starts], np.minimum.reduceat(least, starts)
    return nodes, smallest
