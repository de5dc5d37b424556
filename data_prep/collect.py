"""From source files to a document shard: the body of the task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.errors import EmptyCorpusError
from cluster.artefacts.shard_records import Reject
from cluster.shards import ShardResult
from data_prep.document import Document
from data_prep.documents import DocumentWriter
from data_prep.filters import AnyFilter
from data_prep.filters.chain import FilterChain
from data_prep.repeated_ids import MARK, named_by_place
from data_prep.sources import source_of
from data_prep.sources.base import FilePart, LeftOut, Skipped, SourceConfig

NOTED_NAMES = 1000
"""Most names per shard of markup that its source left out, the frequent ones first."""


@dataclass(frozen=True, slots=True)
class DocumentsSplit:
    """The input of one document shard: files, or parts of files, of one source."""

    source: SourceConfig
    parts: tuple[FilePart, ...]
    filters: tuple[AnyFilter, ...]
    min_characters: int


def collect_documents(split: DocumentsSplit, path: Path) -> ShardResult:
    """Read the parts of a split, filter their documents and write them as one Parquet file.

    What cannot be read becomes a Reject. Memory is bounded by a row group and the source's largest document.
    """
    rejects: list[Reject] = []
    skipped: Counter[str] = Counter()
    left_out: dict[str, Counter[str]] = {}
    num_read = num_short = 0
    chain = FilterChain(split.filters)
    with DocumentWriter(path) as writer:
        for item in _read_all(split):
            if isinstance(item, Reject):
                rejects.append(item)
                continue
            if isinstance(item, Skipped):
                skipped[f"skipped.{item.reason}"] += 1
                continue
            if isinstance(item, LeftOut):
                left_out.setdefault(item.what, Counter()).update(item.counts)
                continue
            num_read += 1
            document = chain.apply(item)
            if document is None:
                continue
            if len(document.text) < split.min_characters:
                num_short += 1
            else:
                _add(writer, document, rejects)
        num_documents, text_bytes = writer.num_documents, writer.text_bytes
    stats = {"documents_read": num_read, "documents_too_short": num_short, "text_bytes": text_bytes}
    return ShardResult(
        rows=num_documents,
        stats=stats | skipped | chain.counts,
        rejects=tuple(replace(reject, source=split.source.name) for reject in rejects),
        notes=(*chain.examples, *map(_note_left_out, left_out.items())),
        text_bytes=text_bytes,
    )


def _read_all(split: DocumentsSplit) -> Iterator[Document | Reject | Skipped | LeftOut]:
    source = source_of(split.source)
    for part in split.parts:
        yield from source.read(split.source, part)


def _note_left_out(item: tuple[str, Counter[str]]) -> dict[str, Any]:
    what, counts = item
    often = sorted(counts.items(), key=lambda own: (-own[1], own[0]))[:NOTED_NAMES]
    return {"left_out": what, "counts": dict(often)}


def _add(writer: DocumentWriter, document: Document, rejects: list[Reject]) -> None:
    if MARK in document.doc_id:
        document = replace(document, doc_id=named_by_place(document.doc_id, document.uri, document.meta))
    try:
        writer.add(document)
    except (UnicodeEncodeError, orjson.JSONEncodeError) as error:
        offset = int(document.meta.get("byte_start", 0))
        rejects.append(Reject(document.uri, offset, f"{document.doc_id} holds invalid Unicode: {error}"))


def require_documents(totals: Mapping[str, int], num_rejects: int, min_characters: int) -> None:
    """Refuse to go on with nothing.

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
