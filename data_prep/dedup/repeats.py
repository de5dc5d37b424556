"""All but the first of the records with the same key, in memory that does not depend on how often a key occurs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.dedup.records import Records, RecordWriter, hash_range, in_blocks, join, read_range


@dataclass(frozen=True, slots=True)
class RepeatsSplit:
    """One range of keys of a directory of records, which are in the order of the corpus."""

    records: Path
    partition: int
    num_partitions: int
    keys: tuple[str, ...]
    """The columns that make the key; partitions are ranges of the first."""
    columns: tuple[tuple[str, str], ...]
    """(name, dtype) of the columns to write, the number of the document first."""


def find_repeats(split: RepeatsSplit, path: Path) -> ShardResult:
    """Write the records of a partition whose key was seen earlier in the corpus, by document."""
    records = read_range(split.records, *hash_range(split.partition, split.num_partitions))
    with RecordWriter(path, dict(split.columns)) as writer:
        for repeats, _ in iterate_repeats(records, split.keys):
            writer.write(repeats)
    return ShardResult(rows=writer.num_records)


def iterate_repeats(runs: Iterable[Records], keys: Sequence[str]) -> Iterator[tuple[Records, np.ndarray]]:
    """Repeats in every block of records: ([repeats] columns, [repeats] the number of the first document with that key).

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
