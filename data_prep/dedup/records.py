"""Records that are sorted by a key, on disk: what map tasks write, and reduce tasks read a range of keys from.

A file is a sequence of runs, and every run is sorted by the first column. So a task writes as it goes and holds
one run in memory, and a reader finds its range in each run by bisection without reading the rest. Partitions are
ranges of keys; how many there are is decided when all records are written, from their number alone.

Equal documents and repeated ids are found here: records of hashes, all but the first with the same key. Memory does not
depend on how often a key occurs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from cluster.artefacts.storage import contents_of
from cluster.shards import ShardResult
from data_prep.documents import one_chunk, read_row_groups
from data_prep.layout import REPAIR
from data_prep.ragged import string_offsets

PARTITION_RECORDS = 1 << 22
"""Records that one reduce task is meant to hold; what its memory is proportional to."""
BLOCK_RECORDS = 1 << 22
"""Records that are sorted or written at a time where there may be more of them."""
ROW_BITS = 32
"""A document is named by `shard << ROW_BITS | row`: these numbers ascend in the order of the corpus."""

Records = dict[str, np.ndarray]
"""A sorted run of records: columns of equal length, by name; NumPy dtypes as the writer's columns name them."""


def count_partitions(num_records: int) -> int:
    """Partitions for so many records."""
    return max(1, -(-num_records // PARTITION_RECORDS))


def hash_range(partition: int, num_partitions: int) -> tuple[int, int]:
    """First and last uint64 key of one of `num_partitions` equal ranges."""
    return (
        (partition << 64) // num_partitions,
        ((partition + 1) << 64) // num_partitions - 1,
    )


def documents_of(shard: int) -> tuple[int, int]:
    """The lowest and the highest number that a document of a shard may have."""
    return shard << ROW_BITS, ((shard + 1) << ROW_BITS) - 1


def number_documents(shard: int, rows: np.ndarray) -> np.ndarray:
    """uint64 indices of documents in the corpus, from their rows in a shard."""
    return np.asarray(rows).astype(np.uint64) | np.uint64(shard << ROW_BITS)


def rows_of(documents: np.ndarray) -> np.ndarray:
    """int64 rows in their shards, from indices in the corpus."""
    return (documents & np.uint64((1 << ROW_BITS) - 1)).astype(np.int64)


def document_ranges(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of document numbers that hold at most PARTITION_RECORDS documents each and all of them together.

    Args:
        rows: documents in every shard.
    """
    ranges: list[tuple[int, int]] = []
    first, room = 0, PARTITION_RECORDS
    for shard, num_rows in enumerate(rows):
        position = 0
        while num_rows - position > room:
            position += room
            last = (shard << ROW_BITS) + position - 1
            ranges.append((first, last))
            first, room = last + 1, PARTITION_RECORDS
        room -= num_rows - position
    return [*ranges, (first, (len(rows) << ROW_BITS) - 1)]


class RecordWriter(AbstractContextManager["RecordWriter"]):
    """Writes runs to one file."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        """`columns`: NumPy dtype by name; the first is the key."""
        self.schema = pa.schema([(name, pa.from_numpy_dtype(dtype)) for name, dtype in columns.items()])
        self.num_records = 0
        self._writer = pa.ipc.new_file(str(path), self.schema)

    def write(self, run: Records) -> None:
        """Append a run, which is put in the order of all its columns, the first before the others."""
        order = np.lexsort([run[name] for name in reversed(self.schema.names)])
        arrays = [
            pa.array(run[field.name][order].astype(field.type.to_pandas_dtype())) for field in self.schema
        ]
        if len(order):
            self._writer.write_batch(pa.record_batch(arrays, schema=self.schema))
        self.num_records += len(order)

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def read_range(directory: Path, first: int, last: int) -> Iterator[Records]:
    """The records with `first <= key <= last`: a part for every run that has some, file by file in order.

    Raises:
        CorruptArtefactError: a file is unreadable.
    """
    bounds = np.array([first, last], dtype=np.uint64)
    for path in sorted(directory.glob("*.arrow")):
        with (
            contents_of(path, next_step=REPAIR),
            pa.memory_map(str(path)) as mapped,
            pa.ipc.open_file(mapped) as file,
        ):
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                columns = [column.to_numpy() for column in batch.columns]
                start = int(np.searchsorted(columns[0], bounds[0], side="left"))
                end = int(np.searchsorted(columns[0], bounds[1], side="right"))
                if start < end:
                    parts = [column[start:end].copy() for column in columns]
                    yield dict(zip(batch.schema.names, parts, strict=True))


def read_documents(directory: Path, shard: int) -> Records | None:
    """All records of the documents of a shard, sorted by document; None when there are none."""
    parts = list(read_range(directory, *documents_of(shard)))
    if not parts:
        return None
    joined = join(parts)
    order = np.lexsort(list(reversed(joined.values())))
    return {name: column[order] for name, column in joined.items()}


def read_rows(directory: Path | None, shard: int) -> np.ndarray:
    """[n] int64 different rows of a shard whose documents have records, ascending; none without a directory."""
    found = None if directory is None else read_documents(directory, shard)
    return np.empty(0, dtype=np.int64) if found is None else np.unique(rows_of(found["document"]))


def join(runs: list[Records]) -> Records:
    """The records of all runs, in order."""
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


def in_blocks(runs: Iterable[Records]) -> Iterator[Records]:
    """Join runs until each holds at least BLOCK_RECORDS records."""
    waiting: list[Records] = []
    count = 0
    for run in runs:
        waiting.append(run)
        count += len(next(iter(run.values())))
        if count >= BLOCK_RECORDS:
            yield join(waiting)
            waiting, count = [], 0
    if waiting:
        yield join(waiting)


# -- all but the first of the records with the same key ------------------------------------------------------

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
