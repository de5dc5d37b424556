"""A few numbers per document, so that decisions over the whole corpus need not read its text again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from cluster.shards import ShardResult
from data_prep.documents import read_row_groups
from data_prep.hashing import hash_strings

INDEX = "index"
"""Name of its artefact among the work."""
SAMPLING_SALT = 1
"""Keeps the draw of training text for the tokenizer independent of the draw of held-out documents."""
ENTRY = np.dtype([("text_hash", "<u8", 2), ("draw", "<u8"), ("text_bytes", "<u8")])
"""`text_hash`: xxh3_128 of the UTF-8 text; `draw`: hash of the document's id; 32 bytes a document."""


@dataclass(frozen=True, slots=True)
class IndexSplit:
    """The input of one index file."""

    documents: Path
    """A document shard."""


def index_files(num_shards: int) -> list[str]:
    """File names, in the order of the document shards."""
    return [f"index-{number:05d}-of-{num_shards:05d}.npy" for number in range(num_shards)]


def index_documents(split: IndexSplit, path: Path) -> ShardResult:
    """Write the index of one document shard: an `.npy` of [documents] ENTRY."""
    parts = [np.empty(0, dtype=ENTRY)]
    for _, table in read_row_groups(split.documents, ("doc_id", "text")):
        parts.append(_entries(table.combine_chunks()))
    index = np.concatenate(parts)
    with path.open("wb") as stream:
        np.save(stream, index)
    return ShardResult(rows=len(index))


def load_index(directory: Path, files: Sequence[str]) -> list[np.ndarray]:
    """[documents] ENTRY of every shard, memory-mapped (an empty file cannot be)."""
    return [load_entries(directory / file) for file in files]


def load_entries(path: Path) -> np.ndarray:
    """[documents] ENTRY of one shard, memory-mapped."""
    index = np.load(path, mmap_mode="r", allow_pickle=False)
    assert index.dtype == ENTRY, f"{path} is no document index"
    return index


def _entries(table: pa.Table) -> np.ndarray:
    entries = np.empty(table.num_rows, dtype=ENTRY)
    texts = _one_chunk(table["text"])
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset :][: len(texts) + 1]
    values = memoryview(texts.buffers()[2] or b"")
    digests = b"".join(
        xxhash.xxh3_128_digest(values[start:end])
        for start, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False)
    )
    entries["text_hash"] = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    entries["draw"] = hash_strings(_one_chunk(table["doc_id"]), salt=SAMPLING_SALT)
    entries["text_bytes"] = np.diff(offsets)
    return entries


def _one_chunk(column: pa.ChunkedArray) -> pa.StringArray:
    assert column.num_chunks == 1, "a combined table has one chunk per column"
    return column.chunk(0)
