"""Documents to the rows of them that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.manifest import Manifest, hash_json
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Shard, ShardRecord
from data_prep.dedup.exact import keep_all, keep_first
from data_prep.dedup.index import IndexSplit, index_documents, index_files, load_index
from data_prep.layout import DEDUP
from data_prep.selection import Selection, selection_files, write_selection
from data_prep.workspace import Workspace

VERSION = 2
"""Raised when the code changes what it makes, so that older artefacts are not taken for current."""


def deduplicate(job: Workspace, documents: Manifest) -> Manifest:
    """Make the `dedup` artefact: the selection of every document shard."""
    indexes, results = index_files(job.num_shards), selection_files(job.num_shards)

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        hashes = [entries["text_hash"] for entries in load_index(directory, indexes)]
        kept = (keep_first if job.config.dedup.documents else keep_all)(hashes)
        for file, rows in zip(results, kept, strict=True):
            write_selection(directory / file, Selection.whole(rows))
        sources = job.by_source(records)
        for own in sources.values():
            own |= {"documents_kept": 0, "duplicates": 0}
        for shard, (rows, read) in enumerate(zip(kept, hashes, strict=True)):
            own = sources[job.source_of(shard).name]
            own["documents_kept"] += len(rows)
            own["duplicates"] += len(read) - len(rows)
        totals = {key: sum(own[key] for own in sources.values()) for key in ("documents_kept", "duplicates")}
        return totals | {"sources": sources}

    shards = [
        Shard(file, IndexSplit(job.documents_path(documents, shard)), hash_json([VERSION, entry.xxh3_128]))
        for shard, (file, entry) in enumerate(zip(indexes, documents.files, strict=True))
    ]
    return build_sharded_artefact(
        job.out / DEDUP,
        DEDUP,
        function=index_documents,
        shards=shards,
        config={"version": VERSION, "method": job.config.dedup.model_dump(mode="json")},
        inputs=[job.entry(documents)],
        finish=finish,
        replace=job.replace,
    )
