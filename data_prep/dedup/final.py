"""The last word on one document shard: its selection, and what was removed by which method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson

from cluster.artefacts.shard_records import Reject
from cluster.shards import ShardResult
from data_prep.dedup.records import read_documents, rows_of
from data_prep.dedup.survivors import Survivors
from data_prep.documents import read_selected
from data_prep.selection import Selection, write_selection

COUNTS = ("documents_kept", "duplicates", "paragraph_duplicates", "near_duplicates",
          "removed_paragraphs", "removed_paragraph_bytes", "repeated_ids")  # fmt: skip
"""Documents kept; documents dropped as equal to another, as made of repeated paragraphs, and as nearly equal to
another; paragraphs and UTF-8 bytes that are removed from the documents that are kept; documents
whose id an earlier one has."""


@dataclass(frozen=True, slots=True)
class FinalSplit:
    """The input of the selection of one document shard."""

    distinct: Survivors
    """The documents that remain without equal ones."""
    survivors: Survivors
    """The documents and texts that remain in the end."""
    id_repeats: Path
    """Directory with the documents whose id an earlier one has."""
    reject_repeated_ids: bool
    """Leave these out, as rejects, instead of telling them apart by their places."""


def decide(split: FinalSplit, path: Path) -> ShardResult:
    """Write what deduplication keeps of a document shard."""
    own = split.survivors
    distinct, whole, left = split.distinct.load(), replace(own, selection=None).load(), own.load()
    found = read_documents(split.id_repeats, own.shard)
    repeated = np.empty(0, dtype=np.int64) if found is None else np.unique(rows_of(found["document"]))
    repeated = repeated[np.isin(repeated, left.rows)]
    kept = replace(left, repeated_ids=repeated)
    rejects: tuple[Reject, ...] = ()
    if split.reject_repeated_ids and len(repeated):
        rejects = tuple(_reject(own.documents, Selection.whole(repeated)))
        kept = left.take(np.flatnonzero(~np.isin(left.rows, repeated)))
    write_selection(path, kept)
    counts = (
        len(kept),
        own.num_documents() - len(distinct),
        len(whole) - len(left),
        len(distinct) - len(whole),
        len(kept.spans),
        int(np.diff(kept.spans, axis=1).sum()),
        len(repeated),
    )
    return ShardResult(rows=len(kept), stats=dict(zip(COUNTS, counts, strict=True)), rejects=rejects)


def _reject(documents: Path, repeated: Selection) -> Iterator[Reject]:
    for table in read_selected(documents, ("doc_id", "uri", "meta", "source"), repeated):
        for row in table.to_pylist():
            start = int(orjson.loads(row["meta"]).get("byte_start", 0))
            reason = f"an earlier document has the id {row['doc_id']}, too"
            yield Reject(row["uri"], start, reason, row["source"])
