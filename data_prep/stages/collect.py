"""Source files to documents: read, filtered, and written as Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.errors import EmptyCorpusError
from cluster.artefacts.manifest import InputEntry, Manifest
from cluster.artefacts.shard_records import SHARD_RECORDS, Reject, ShardRecord, sum_stats
from cluster.shards import ShardResult, WriteShard
from data_prep.document import MARK, named_by_place
from data_prep.documents import DocumentWriter
from data_prep.filters import AnyFilter, FilterChain
from data_prep.inputs import Input
from data_prep.layout import DOCUMENT_FILES, DOCUMENTS
from data_prep.sources.base import Gap, LeftOut, Skipped, SourceConfig, SourceFile
from data_prep.workspace import Workspace

VERSION = 6
"""Raised when the code changes what it makes, so that older artefacts do not count as current."""
SHOWN_EXAMPLES = 100
"""Dropped documents that the manifest shows at most."""
SHOWN_NAMES = 100
"""Most names in the manifest of markup that sources left out."""


def collect(job: Workspace, inputs: Sequence[Input], digests: Mapping[str, str]) -> Manifest:
    """Make the `documents` artefact: one Parquet shard per group of source files. Errors: as `prepare`.

    Args:
        digests: xxh3_128 hex digest of every source file, by its path.
    """
    least = job.config.min_characters
    filters = {
        own.name: job.config.filters if own.filters is None else own.filters for own in job.config.sources
    }
    settings = {
        own.name: own.identity() | {"filters": [each.identity() for each in filters[own.name]]}
        for own in job.config.sources
    }

    def finish(directory: Path, records: Sequence[ShardRecord]) -> Mapping[str, Any]:
        num_rejects = sum(len(record.rejects) for record in records)
        require_documents(sum_stats(records), num_rejects, least)
        return {"sources": job.by_source(records), **_summarize_notes(job, directory, records)}

    def make(shard: int) -> WriteShard:
        own = job.shards[shard]
        return partial(collect_documents, own.source, own.parts, filters[own.source.name], least)

    def contents(shard: int) -> list[Any]:
        own = job.shards[shard]
        parts = [[part.name, digests[part.path], part.start, part.end] for part in own.parts]
        return [VERSION, settings[own.source.name], parts, least]

    return job.build(
        DOCUMENTS,
        DOCUMENT_FILES,
        make,
        config={"version": VERSION, "sources": [*settings.values()], "min_characters": least},
        inputs=[
            InputEntry(kind="source-file", uri=own.file.path, fingerprint=digests[own.file.path])
            for own in inputs
        ],
        contents=contents,
        finish=finish,
        max_rejects=job.config.max_rejects,
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
                own = totals.setdefault(job.shards[shard].source.name, {})
                own.setdefault(note["left_out"], Counter()).update(note["counts"])
            elif len(examples) < SHOWN_EXAMPLES:
                examples.append(note)
    left_out = {
        source: {what: dict(counts.most_common(SHOWN_NAMES)) for what, counts in own.items()}
        for source, own in totals.items()
    }
    return {"dropped_examples": examples, "left_out": left_out}


NOTED_NAMES = 1000
"""Most names per shard of markup that its source left out, the frequent ones first."""


def collect_documents(
    source: SourceConfig,
    parts: Sequence[SourceFile],
    filters: Sequence[AnyFilter],
    min_characters: int,
    path: Path,
) -> ShardResult:
    """Read parts of files of a source, filter their documents and write them as one Parquet file.

    What cannot be read becomes a Reject. Memory is bounded by a row group and the source's largest document.
    """
    rejects: list[Reject] = []
    skipped: Counter[str] = Counter()
    left_out: dict[str, Counter[str]] = {}
    num_read = num_short = 0
    chain = FilterChain(filters)
    found = ((part.name, item) for part in parts for item in source.read(part))
    with DocumentWriter(path) as writer:
        for file, item in found:
            if isinstance(item, Gap):
                rejects.append(Reject(file, item.byte_offset, item.reason, source.name))
            elif isinstance(item, Skipped):
                skipped[f"skipped.{item.reason}"] += 1
            elif isinstance(item, LeftOut):
                left_out.setdefault(item.what, Counter()).update(item.counts)
            else:
                num_read += 1
                document = chain.apply(item)
                if document is None:
                    continue
                if len(document.text) < min_characters:
                    num_short += 1
                    continue
                own_id, meta = document.doc_id, document.meta
                if MARK in own_id:
                    document = replace(document, doc_id=named_by_place(own_id, file, meta))
                try:
                    writer.add(document)
                except (UnicodeEncodeError, orjson.JSONEncodeError) as error:
                    reason = f"{own_id} holds invalid Unicode: {error}"
                    rejects.append(Reject(file, int(meta.get("byte_start", 0)), reason, source.name))
        num_documents, text_bytes = writer.num_documents, writer.text_bytes
    stats = {"documents_read": num_read, "documents_too_short": num_short, "text_bytes": text_bytes}
    frequent: list[dict[str, Any]] = []
    for what, counts in left_out.items():
        often = sorted(counts.items(), key=lambda own: (-own[1], own[0]))[:NOTED_NAMES]
        frequent.append({"left_out": what, "counts": dict(often)})
    return ShardResult(
        rows=num_documents,
        stats=stats | skipped | chain.counts,
        rejects=tuple(rejects),
        notes=(*chain.examples, *frequent),
        text_bytes=text_bytes,
    )


def require_documents(totals: Mapping[str, int], num_rejects: int, min_characters: int) -> None:
    """Refuse to continue without documents.

    Args:
        totals: statistics of all shards, added up.

    Raises:
        EmptyCorpusError: no document is left.
    """
    if totals["rows"]:
        return
    skipped = {
        name.removeprefix("skipped."): count for name, count in totals.items() if name.startswith("skipped.")
    }
    reasons = ", ".join(f"{name} {count}" for name, count in sorted(skipped.items()))
    num_read, num_short = totals.get("documents_read", 0), totals.get("documents_too_short", 0)
    raise EmptyCorpusError(
        f"The sources hold no usable document. {num_read} were read: filters dropped {num_read - num_short}, and"
        f" {num_short} are shorter than min_characters = {min_characters}. {sum(skipped.values())} records were"
        f" skipped{f' ({reasons})' if reasons else ''}, and {num_rejects} inputs were unreadable.",
        next_step="check the paths, kinds and fields of `sources`, or lower `min_characters` and what filters ask",
    )
