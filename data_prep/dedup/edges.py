"""The graph of near-duplicates: documents are nodes, and sharing a bucket makes an edge."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.dedup.records import Records, RecordWriter, hash_range, read_range
from data_prep.dedup.repeats import RepeatsSplit, iterate_repeats

COLUMNS = {"node": "uint64", "other": "uint64"}
"""Numbers of two documents that belong together."""


def link_documents(split: RepeatsSplit, path: Path) -> ShardResult:
    """Write an edge from every document in a bucket to the first one, and back, for one range of buckets."""
    buckets = read_range(split.records, *hash_range(split.partition, split.num_partitions))
    with RecordWriter(path, dict(split.columns)) as writer:
        for repeats, firsts in iterate_repeats(buckets, split.keys):
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
