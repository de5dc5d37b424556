"""Exact deduplication: of all documents with the same text, the first is kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

PARTITION_DOCUMENTS = 1 << 24
"""Documents sorted at a time (by hash range), which bounds the memory of the reduce step."""


def keep_first(hashes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Row numbers of the first occurrence of every hash, in (shard, row) order.

    Args:
        hashes: per shard [documents, 2] uint64.

    Returns:
        Per shard [kept] int64 ascending row numbers.
    """
    counts = [len(shard) for shard in hashes]
    total = sum(counts)
    first = np.zeros(total, dtype=bool)
    num_partitions = max(1, -(-total // PARTITION_DOCUMENTS))
    for partition in range(num_partitions):
        numbers, keys = _partition(hashes, partition, num_partitions)
        # Stable, so that within a run of equal hashes the lowest document number comes first.
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        ordered = keys[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        first[numbers[order[is_first]]] = True
    bounds = np.cumsum([0, *counts])
    return [np.flatnonzero(first[start:end]) for start, end in pairwise(bounds)]


def _partition(
    hashes: Sequence[np.ndarray], partition: int, num_partitions: int
) -> tuple[np.ndarray, np.ndarray]:
    """Documents of one range of hashes: ([n] int64 numbers in the corpus, [n, 2] uint64 hashes)."""
    numbers, keys = [np.empty(0, dtype=np.int64)], [np.empty((0, 2), dtype=np.uint64)]
    start = 0
    for shard in hashes:
        chosen = np.flatnonzero(shard[:, 0] % np.uint64(num_partitions) == partition)
        numbers.append(chosen + start)
        keys.append(np.asarray(shard[chosen]))
        start += len(shard)
    return np.concatenate(numbers), np.concatenate(keys)


def keep_all(hashes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All row numbers: what `dedup: none` does."""
    return [np.arange(len(shard), dtype=np.int64) for shard in hashes]
