"""Hashes of whole documents and of their ids, to find equal ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from cluster.shards import ShardResult
from data_prep.dedup.records import RecordWriter, number_documents
from data_prep.dedup.survivors import Survivors, read_texts
from data_prep.documents import one_chunk, read_row_groups

KEYS = ("hash_high", "hash_low")
"""The two halves of xxh3_128 of the UTF-8 text or id."""
COLUMNS = {"hash_high": "uint64", "hash_low": "uint64", "document": "uint64"}
REPEATS = {"document": "uint64"}


def hash_documents(split: Survivors, path: Path) -> ShardResult:
    """Write a record of every document of a shard."""
    with RecordWriter(path, COLUMNS) as writer:
        for rows, texts in read_texts(split.documents, split.load()):
            high, low = _hash(texts).T
            documents = number_documents(split.shard, rows)
            writer.write({"hash_high": high, "hash_low": low, "document": documents})
    return ShardResult(rows=writer.num_records)


def hash_ids(split: Survivors, path: Path) -> ShardResult:
    """Write a record of the id of every document of a shard."""
    with RecordWriter(path, COLUMNS) as writer:
        for first, table in read_row_groups(split.documents, ("doc_id",)):
            high, low = _hash(one_chunk(table["doc_id"])).T
            documents = number_documents(split.shard, np.arange(first, first + table.num_rows))
            writer.write({"hash_high": high, "hash_low": low, "document": documents})
    return ShardResult(rows=writer.num_records)


def _hash(texts: pa.StringArray) -> np.ndarray:
    """[texts, 2] uint64."""
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset :][: len(texts) + 1].tolist()
    values = memoryview(texts.buffers()[2] or b"")
    digests = b"".join(xxhash.xxh3_128_digest(values[start:end]) for start, end in pairwise(offsets))
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)
