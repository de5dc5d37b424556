"""Documents to the rows of them that are kept, and to what of their texts is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import Manifest, hash_json
from cluster.artefacts.shard_records import ShardRecord
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Deferred, Shard
from data_prep.dedup.final import COUNTS, FinalSplit, decide
from data_prep.dedup.steps import ID_REPEATS, Deduplication
from data_prep.layout import DEDUP
from data_prep.selection import selection_files
from data_prep.workspace import Workspace

VERSION = 5
"""Raised when the code changes what it makes, so that older artefacts are not taken for current."""


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

    def split(shard: int) -> FinalSplit:
        return FinalSplit(
            steps.distinct(shard),
            steps.survivors(shard),
            steps.directory(ID_REPEATS),
            reject_repeated_ids=job.config.repeated_ids == "reject",
        )

    shards = [
        Shard(
            file,
            Deferred(split, (shard,)),
            hash_json([settings, documents.fingerprint, shard]),
            documents.files[shard].size_bytes,
        )
        for shard, file in enumerate(selection_files(job.num_shards))
    ]
    return build_sharded_artefact(
        job.out / DEDUP,
        DEDUP,
        function=decide,
        shards=shards,
        config=settings,
        inputs=[job.entry(documents)],
        finish=finish,
        max_rejects=job.config.max_rejects,
        replace=job.replace,
        before=steps.make,
    )
