"""Source files to documents: read, filtered, and written as Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.artefacts.manifest import InputEntry, Manifest, hash_json
from cluster.artefacts.shard_records import ShardRecord, sum_stats
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Shard
from data_prep.collect import DocumentsSplit, collect_documents, require_documents
from data_prep.documents import document_files
from data_prep.inputs import InputPart
from data_prep.layout import DOCUMENTS
from data_prep.sources.base import SourceConfig
from data_prep.workspace import Workspace

VERSION = 3
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

    def finish(_: Any, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        totals = sum_stats(records)
        num_rejects = sum(len(record.rejects) for record in records)
        require_documents(totals["rows"], totals.get("documents_read", 0), num_rejects, least)
        examples = [note for record in records for note in record.notes if "left_out" not in note]
        return {
            "sources": job.by_source(records),
            "dropped_examples": examples[:SHOWN_EXAMPLES],
            "left_out": _left_out(job, records),
        }

    sources = [_settings(source, job) for source in job.config.sources]
    shards = []
    for file, group in zip(document_files(job.num_shards), job.groups, strict=True):
        source = group[0].input.source
        filters = _filters(source, job)
        split = DocumentsSplit(source, tuple(item.part for item in group), filters, least)
        identity = hash_json(
            [VERSION, _settings(source, job), [_content(item, job) for item in group], least]
        )
        shards.append(Shard(file, split, identity, sum(item.size_bytes for item in group)))
    return build_sharded_artefact(
        job.out / DOCUMENTS,
        DOCUMENTS,
        function=collect_documents,
        shards=shards,
        config={"version": VERSION, "sources": sources, "min_characters": least},
        inputs=[
            InputEntry(kind="source-file", uri=item.file.path, fingerprint=digest)
            for item, digest in job.digests.items()
        ],
        finish=finish,
        max_rejects=job.config.max_rejects,
        replace=job.replace,
    )


def _left_out(job: Workspace, records: Sequence[ShardRecord]) -> dict[str, dict[str, dict[str, int]]]:
    """Markup that sources left out of their texts: by source and kind, the most frequent names with their counts."""
    totals: dict[str, dict[str, Counter[str]]] = {}
    for shard, record in enumerate(records):
        for note in record.notes:
            if "left_out" in note:
                own = totals.setdefault(job.source_of(shard).name, {})
                own.setdefault(note["left_out"], Counter()).update(note["counts"])
    return {
        source: {what: dict(counts.most_common(SHOWN_NAMES)) for what, counts in own.items()}
        for source, own in totals.items()
    }


def _filters(source: SourceConfig, job: Workspace) -> tuple[Any, ...]:
    return job.config.filters if source.filters is None else source.filters


def _settings(source: SourceConfig, job: Workspace) -> dict[str, Any]:
    """A source's settings and filters, without the paths of its files, which do not change their contents."""
    settings = source.model_dump(mode="json", exclude={"paths", "path", "filters"})
    return settings | {"filters": [each.identity() for each in _filters(source, job)]}


def _content(item: InputPart, job: Workspace) -> list[Any]:
    part = item.part
    return [part.file.name, job.digests[item.input], part.start, part.end]
