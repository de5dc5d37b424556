"""The graph of near-duplicates: documents are nodes, and sharing a bucket makes an edge or a candidate pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.dedup.records import Records, RecordWriter, hash_range, in_blocks, join, read_range
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


PAIRED_BEFORE = 16
"""A document of a bucket is paired with the first of the bucket and so many before it: with all of a bucket that is no
larger than this. Pairs are linear in the records, however large a bucket is."""


def pair_documents(split: RepeatsSplit, path: Path) -> ShardResult:
    """Write the pairs of one range of buckets, each also from its other end."""
    buckets = read_range(split.records, *hash_range(split.partition, split.num_partitions))
    seen: Records = {}
    with RecordWriter(path, COLUMNS) as writer:
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
