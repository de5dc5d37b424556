"""Documents to the rows of them that are kept, and to what of their texts is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cluster.artefacts.manifest import Manifest
from cluster.artefacts.shard_records import Reject, ShardRecord
from cluster.shards import ShardResult, WriteShard
from data_prep.dedup.records import read_documents, rows_of
from data_prep.dedup.steps import ID_REPEATS, Deduplication
from data_prep.dedup.texts import Survivors
from data_prep.documents import read_selected
from data_prep.layout import DEDUP, SELECTION_FILES
from data_prep.selection import Selection, write_selection
from data_prep.workspace import Workspace

VERSION = 5
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""


def deduplicate(job: Workspace, documents: Manifest) -> Manifest:
    """Make the `dedup` artefact: the selection of every document shard.

    It depends on the documents and the settings alone; the steps that lead to it are made only when one of its
    files has to be, and may be deleted afterwards.

    Raises:
        TooManyRejectsError: ids repeat, and `repeated_ids` rejects more of them than `max_rejects`.
    """
    method = job.config.dedup
    steps = Deduplication(job, documents)
    settings: dict[str, Any] = {
        "version": VERSION,
        "method": method.model_dump(mode="json"),
        "repeated_ids": job.config.repeated_ids,
    }
    if method.paragraphs is not None:
        settings["min_characters"] = job.config.min_characters

    def finish(_: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        sources = {
            name: {key: own.get(key, 0) for key in COUNTS} for name, own in job.by_source(records).items()
        }
        near = {"near": method.near.describe()} if method.near is not None else {}
        return {"sources": sources, **near}

    def make(shard: int) -> WriteShard:
        return partial(
            decide,
            distinct=steps.distinct(shard),
            survivors=steps.survivors(shard),
            id_repeats=job.directory(ID_REPEATS),
            reject_repeated_ids=job.config.repeated_ids == "reject",
        )

    return job.build(
        DEDUP,
        SELECTION_FILES.files(job.num_shards),
        make,
        lambda shard: [settings, documents.fingerprint, shard],
        [entry.size_bytes for entry in documents.files],
        config=settings,
        inputs=[job.entry(documents)],
        finish=finish,
        max_rejects=job.config.max_rejects,
        before=steps.make,
    )


COUNTS = ("documents_kept", "duplicates", "paragraph_duplicates", "near_duplicates",
          "removed_paragraphs", "removed_paragraph_bytes", "repeated_ids")  # fmt: skip
"""Documents kept; documents dropped as equal to another, as made of repeated paragraphs, and as nearly equal to
another; paragraphs and UTF-8 bytes that are removed from the documents that are kept; documents
whose id an earlier one has."""


def decide(
    path: Path, *, distinct: Survivors, survivors: Survivors, id_repeats: Path, reject_repeated_ids: bool
) -> ShardResult:
    """Write what deduplication keeps of a document shard.

    Args:
        distinct: the documents that remain without equal ones.
        survivors: the documents and texts that remain in the end.
        id_repeats: directory with the documents whose id an earlier one has.
        reject_repeated_ids: leave these out, as rejects, instead of telling them apart by their places.
    """
    num_distinct = len(distinct.load())
    whole, left = replace(survivors, selection=None).load(), survivors.load()
    found = read_documents(id_repeats, survivors.shard)
    repeated = np.empty(0, dtype=np.int64) if found is None else np.unique(rows_of(found["document"]))
    repeated = repeated[np.isin(repeated, left.rows)]
    kept = replace(left, repeated_ids=repeated)
    rejects: tuple[Reject, ...] = ()
    if reject_repeated_ids and len(repeated):
        rows = read_selected(
            survivors.documents, ("doc_id", "uri", "meta", "source"), Selection.whole(repeated)
        )
        rejects = tuple(
            Reject(
                row["uri"],
                int(orjson.loads(row["meta"]).get("byte_start", 0)),
                f"an earlier document has the id {row['doc_id']}",
                row["source"],
            )
            for table in rows
            for row in table.to_pylist()
        )
        kept = left.take(np.flatnonzero(~np.isin(left.rows, repeated)))
    write_selection(path, kept)
    counts = (
        len(kept),
        survivors.num_documents() - num_distinct,
        len(whole) - len(left),
        num_distinct - len(whole),
        len(kept.spans),
        int(np.diff(kept.spans, axis=1).sum()),
        len(repeated),
    )
    return ShardResult(rows=len(kept), stats=dict(zip(COUNTS, counts, strict=True)), rejects=rejects)
