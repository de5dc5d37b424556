"""Hashes of documents and ids; all but the first of the records with the same key.

Memory does not depend on how often a key occurs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from cluster.shards import ShardResult
from data_prep.dedup.records import (
    Records,
    RecordWriter,
    hash_range,
    in_blocks,
    join,
    number_documents,
    read_range,
)
from data_prep.documents import one_chunk, read_row_groups
from data_prep.ragged import string_offsets

KEYS = ("hash_high", "hash_low")
"""The two halves of xxh3_128 of the UTF-8 text or id."""
COLUMNS = {"hash_high": "uint64", "hash_low": "uint64", "document": "uint64"}
REPEATS = {"document": "uint64"}


def hash_values(column: str, documents: Path, shard: int, path: Path) -> ShardResult:
    """Write a record of the text or the id of every document of a shard."""
    with RecordWriter(path, COLUMNS) as writer:
        for first, table in read_row_groups(documents, (column,)):
            high, low = _hash(one_chunk(table[column])).T
            numbers = number_documents(shard, np.arange(first, first + table.num_rows))
            writer.write({"hash_high": high, "hash_low": low, "document": numbers})
    return ShardResult(rows=writer.num_records)


def _hash(texts: pa.StringArray) -> np.ndarray:
    """[texts, 2] uint64."""
    offsets = string_offsets(texts).tolist()
    values = memoryview(texts.buffers()[2] or b"")
    digests = b"".join(xxhash.xxh3_128_digest(values[start:end]) for start, end in pairwise(offsets))
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def find_repeats(
    records: Path,
    partition: int,
    num_partitions: int,
    path: Path,
    *,
    keys: Sequence[str],
    columns: Mapping[str, str],
) -> ShardResult:
    """Write the records of a range of keys whose key was seen earlier in the corpus, by document.

    Args:
        records: their directory; they are in the order of the corpus.
        keys: the columns that make the key; partitions are ranges of the first.
        columns: dtypes of the columns to write, the document's index first.
    """
    found = read_range(records, *hash_range(partition, num_partitions))
    with RecordWriter(path, columns) as writer:
        for repeats, _ in iterate_repeats(found, keys):
            writer.write(repeats)
    return ShardResult(rows=writer.num_records)


def iterate_repeats(runs: Iterable[Records], keys: Sequence[str]) -> Iterator[tuple[Records, np.ndarray]]:
    """Repeats in every block of records: ([repeats] columns, [repeats] index of the first document with that key).

    Records of equal keys must come in the order of the corpus. Between blocks only the first record of every key
    is held, and a partition has a bounded number of keys; so a key may occur any number of times.
    """
    seen: Records = {}
    for block in in_blocks(runs):
        own = {name: block[name] for name in (*keys, "document")}
        joined = join([seen, own]) if seen else own
        num_seen = len(joined["document"]) - len(own["document"])
        # Stable: among equal keys, what was seen comes first, then the order of the corpus.
        order = np.lexsort([joined[name] for name in reversed(keys)])
        is_first = np.zeros(len(order), dtype=bool)
        is_first[:1] = True
        for name in keys:
            ordered = joined[name][order]
            is_first[1:] |= ordered[1:] != ordered[:-1]
        first_of = order[np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))]
        repeats = order[~is_first]
        firsts = joined["document"][first_of[~is_first]]
        seen = {name: column[order[is_first]] for name, column in joined.items()}
        yield {name: column[repeats - num_seen] for name, column in block.items()}, firsts
