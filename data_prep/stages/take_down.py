"""Selected documents to those of them that are not on the list of documents to take down."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import Manifest, hash_json
from cluster.artefacts.shard_records import ShardRecord
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Deferred, Shard
from data_prep.layout import TAKEDOWN
from data_prep.selection import selection_files
from data_prep.takedown import TakedownSplit, leave_out
from data_prep.workspace import Workspace

VERSION = 1
"""Raised when the code changes what it makes, so that older artefacts are not taken for current."""


def take_down(job: Workspace, documents: Manifest, selection: Manifest, ids: Sequence[str]) -> Manifest:
    """Make the `takedown` artefact: the selection of every document shard.

    Its settings hold a hash of the ids, not the ids: they may be what is to be forgotten.
    """
    config = {"version": VERSION, "ids": hash_json(list(ids))}

    def finish(_: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        return {"ids_listed": len(ids), "sources": job.by_source(records)}

    def split(shard: int) -> TakedownSplit:
        return TakedownSplit(
            job.documents_path(documents, shard), job.selection_path(selection, shard), tuple(ids)
        )

    shards = []
    for shard, file in enumerate(selection_files(job.num_shards)):
        identity = hash_json([config, documents.fingerprint, selection.fingerprint, shard])
        shards.append(Shard(file, Deferred(split, (shard,)), identity, documents.files[shard].size_bytes))
    made = build_sharded_artefact(
        job.out / TAKEDOWN,
        TAKEDOWN,
        function=leave_out,
        shards=shards,
        config=config,
        inputs=[job.entry(documents), job.entry(selection)],
        finish=finish,
        replace=job.replace,
    )
    if (missing := len(ids) - made.stats["documents_taken_down"]) > 0:
        logging.getLogger(__name__).warning(
            "%d of the %d ids to take down are of no document that was kept.", missing, len(ids)
        )
    return made
