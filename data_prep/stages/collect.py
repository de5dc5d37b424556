"""Source files to documents: read, filtered, and written as Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.artefacts.entries import InputEntries
from cluster.artefacts.manifest import Manifest, hash_json
from cluster.artefacts.shard_records import SHARD_RECORDS, ShardRecord, sum_stats
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Deferred, Shard
from data_prep.collect import DocumentsSplit, collect_documents, require_documents
from data_prep.documents import document_files
from data_prep.layout import DOCUMENTS
from data_prep.sources.base import SourceConfig
from data_prep.workspace import Workspace, library_versions

VERSION = 5
"""Raised when the code changes what it makes, so that older artefacts are not taken for current."""
SHOWN_EXAMPLES = 100
"""Dropped documents that the manifest shows at most."""
SHOWN_NAMES = 100
"""Most names in the manifest of markup that sources left out."""


def collect(job: Workspace) -> Manifest:
    """Make the `documents` artefact: one Parquet shard per group of source files.

    Raises:
        EmptyCorpusError: the sources hold no usable document.
        TooManyRejectsError: more than `max_rejects` inputs are unreadable; finished shards are kept.
    """
    least = job.config.min_characters

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        totals = sum_stats(records)
        num_rejects = sum(len(record.rejects) for record in records)
        require_documents(totals, num_rejects, least)
        return {"sources": job.by_source(records), **_summarize_notes(job, directory, records)}

    def split(shard: int) -> DocumentsSplit:
        source = job.source_of(shard)
        return DocumentsSplit(source, job.groups.parts(shard), _filters(source, job), least)

    sources = [_settings(source, job) for source in job.config.sources]
    shards = []
    for shard, file in enumerate(document_files(job.num_shards)):
        settings = sources[job.groups.source_number(shard)]
        identity = hash_json([VERSION, settings, job.groups.contents(shard, job.digests), least])
        shards.append(Shard(file, Deferred(split, (shard,)), identity, job.groups.sizes[shard]))
    return build_sharded_artefact(
        job.out / DOCUMENTS,
        DOCUMENTS,
        function=collect_documents,
        shards=shards,
        config={"version": VERSION, "sources": sources, "min_characters": least},
        inputs=InputEntries.of_one_kind("source-file", job.groups.inputs.paths, job.digests),
        finish=finish,
        max_rejects=job.config.max_rejects,
        replace=job.replace,
        made_with=library_versions(),
    )


def _summarize_notes(job: Workspace, directory: Path, records: Sequence[ShardRecord]) -> dict[str, Any]:
    """Some dropped documents; and the markup that sources left out of their texts, by source and kind: the most
    frequent names with their counts."""
    examples: list[Any] = []
    totals: dict[str, dict[str, Counter[str]]] = {}
    for shard, record in enumerate(records):
        # The notes of all shards would not fit into memory.
        whole = SHARD_RECORDS.read(directory, record.part_name)
        for note in whole.notes if whole is not None else ():
            if "left_out" in note:
                own = totals.setdefault(job.source_of(shard).name, {})
                own.setdefault(note["left_out"], Counter()).update(note["counts"])
            elif len(examples) < SHOWN_EXAMPLES:
                examples.append(note)
    left_out = {
        source: {what: dict(counts.most_common(SHOWN_NAMES)) for what, counts in own.items()}
        for source, own in totals.items()
    }
    return {"dropped_examples": examples, "left_out": left_out}


def _filters(source: SourceConfig, job: Workspace) -> tuple[Any, ...]:
    return job.config.filters if source.filters is None else source.filters


def _settings(source: SourceConfig, job: Workspace) -> dict[str, Any]:
    return source.identity() | {"filters": [each.identity() for each in _filters(source, job)]}
