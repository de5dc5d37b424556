"""The last word on one document shard: its selection, and what was removed by which method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.shards import ShardResult
from data_prep.dedup.survivors import Survivors, without
from data_prep.selection import write_selection

COUNTS = ("documents_kept", "duplicates", "paragraph_duplicates", "near_duplicates",
          "removed_paragraphs", "removed_paragraph_bytes")  # fmt: skip
"""Documents kept; documents dropped as equal to another, as made of repeated paragraphs, and as nearly equal to
another; paragraphs and UTF-8 bytes that are removed from the documents that are kept."""


@dataclass(frozen=True, slots=True)
class FinalSplit:
    """The input of the selection of one document shard."""

    survivors: Survivors
    """What is left before near-duplicates are removed."""
    near: Path | None
    """Directory with the near-duplicates; None where that is not asked for."""


def decide(split: FinalSplit, path: Path) -> ShardResult:
    """Write what deduplication keeps of a document shard."""
    own = split.survivors
    num_documents = own.num_documents()
    distinct = Survivors(own.documents, own.shard, own.repeats).load()
    left = own.load()
    kept = left
    if split.near is not None:
        rows = without(left.rows, split.near, own.shard)
        kept = left.take(np.searchsorted(left.rows, rows))
    write_selection(path, kept)
    counts = (
        len(kept),
        num_documents - len(distinct),
        len(distinct) - len(left),
        len(left) - len(kept),
        len(kept.spans),
        int(np.diff(kept.spans, axis=1).sum()),
    )
    return ShardResult(rows=len(kept), stats=dict(zip(COUNTS, counts, strict=True)))
