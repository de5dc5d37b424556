"""Connected components of a graph that fits no memory: alternating large-star and small-star (Kiveris et al. 2014).

Edges lie on disk, and a task holds the nodes of one range of document numbers. Two operations take turns:

- large-star: every node u connects its larger neighbours to the smallest node m of its neighbourhood and itself;
- small-star: every node u connects itself and its smaller neighbours to the smallest of them.

Neither changes which nodes are connected. When both change nothing, every component is a star around its smallest node:
the document that comes first in the corpus. That takes O(log^2 n) rounds (theorem 1 there), in practice few.

A task goes over its edges twice: first for the smallest neighbour of each of its nodes, then to write new edges. It
holds its nodes and one block of edges, so a node may have any number of neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.dedup.edges import COLUMNS, both_ways, distinct
from data_prep.dedup.records import Records, RecordWriter, in_blocks, read_range


@dataclass(frozen=True, slots=True)
class StarSplit:
    """The nodes of one range, and where the edges are."""

    edges: Path
    """Directory of edges; for large-star both directions of each, for small-star that to the smaller node."""
    first: int
    last: int
    """The lowest and highest document number in the range."""


def large_star(split: StarSplit, path: Path) -> ShardResult:
    """Write, for the larger neighbours of every node of the range, their edges to its smallest neighbour."""
    nodes, smallest = _smallest_neighbours(split)
    num_changed = 0
    with RecordWriter(path, COLUMNS) as writer:
        for block in _blocks(split):
            larger = block["other"] > block["node"]
            node, other = block["node"][larger], block["other"][larger]
            centre = smallest[np.searchsorted(nodes, node)]
            num_changed += int((centre != node).sum())
            writer.write(distinct(other, centre))
    return ShardResult(rows=writer.num_records, stats={"changed": num_changed})


def small_star(split: StarSplit, path: Path) -> ShardResult:
    """Write, for every node of the range and its smaller neighbours, their edges to the smallest; both ways."""
    nodes, smallest = _smallest_neighbours(split)
    num_changed = 0
    with RecordWriter(path, COLUMNS) as writer:
        for block in _blocks(split):
            centre = smallest[np.searchsorted(nodes, block["node"])]
            moved = block["other"] != centre
            num_changed += int(moved.sum())
            leaves = np.concatenate([block["node"], block["other"][moved]])
            writer.write(both_ways(distinct(leaves, np.concatenate([centre, centre[moved]]))))
    return ShardResult(rows=writer.num_records, stats={"changed": num_changed})


def list_leaves(split: StarSplit, path: Path) -> ShardResult:
    """Write the nodes of the range that have a smaller neighbour."""
    with RecordWriter(path, {"document": "uint64"}) as writer:
        nodes, smallest = _smallest_neighbours(split)
        writer.write({"document": nodes[smallest < nodes]})
    return ShardResult(rows=writer.num_records)


Operation = Callable[[StarSplit, Path], ShardResult]
ROUND: tuple[tuple[str, Operation], ...] = (("large", large_star), ("small", small_star))
"""The operations of a round, in order; the first reads and the second writes edges in both directions."""


def _blocks(split: StarSplit) -> Iterator[Records]:
    return in_blocks(read_range(split.edges, split.first, split.last))


def _smallest_neighbours(split: StarSplit) -> tuple[np.ndarray, np.ndarray]:
    """[n] nodes of the range that have edges, ascending, and [n] the smallest of each one's neighbours and itself."""
    nodes = smallest = np.empty(0, dtype=np.uint64)
    for block in _blocks(split):
        node = np.concatenate([nodes, block["node"]])
        least = np.concatenate([smallest, np.minimum(block["node"], block["other"])])
        order = np.argsort(node, kind="stable")
        node, least = node[order], least[order]
        starts = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
        nodes, smallest = node[starts], np.minimum.reduceat(least, starts)
    return nodes, smallest
