"""From source files to document shards: the first stage of a preparation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from cluster.errors import EmptyCorpusError
from cluster.shards import Reject, ShardResult
from data_prep.documents import DocumentWriter
from data_prep.sources import source_of
from data_prep.sources.base import Document, SourceConfig, SourceFile


@dataclass(frozen=True, slots=True)
class DocumentsSplit:
    """The input of one document shard: whole files of one source."""

    source: SourceConfig
    files: tuple[SourceFile, ...]
    min_characters: int


def collect_documents(split: DocumentsSplit, path: Path) -> ShardResult:
    """Read the files of a split and write their documents as one Parquet file.

    What cannot be read becomes a Reject. Memory is bounded by a row group and the source's largest document.
    """
    rejects: list[Reject] = []
    num_short = 0
    with DocumentWriter(path) as writer:
        for item in _read_all(split):
            if isinstance(item, Reject):
                rejects.append(item)
            elif len(item.text) < split.min_characters:
                num_short += 1
            else:
                _add(writer, item, rejects)
        num_documents, text_bytes = writer.num_documents, writer.text_bytes
    stats = {
        "documents_read": num_documents + num_short,
        "documents_too_short": num_short,
        "text_bytes": text_bytes,
    }
    return ShardResult(rows=num_documents, stats=stats, rejects=tuple(rejects))


def _read_all(split: DocumentsSplit) -> Iterator[Document | Reject]:
    source = source_of(split.source)
    for file in split.files:
        yield from source.read(split.source, file)


def _add(writer: DocumentWriter, document: Document, rejects: list[Reject]) -> None:
    try:
        writer.add(document)
    except (UnicodeEncodeError, orjson.JSONEncodeError) as error:
        offset = int(document.meta.get("byte_start", 0))
        rejects.append(Reject(document.uri, offset, f"{document.doc_id} holds invalid Unicode: {error}"))


def require_documents(num_documents: int, num_read: int, num_rejects: int, min_characters: int) -> None:
    """Refuse to go on with nothing.

    Raises:
        EmptyCorpusError: no document is left.
    """
    if num_documents == 0:
        raise EmptyCorpusError(
            f"The sources hold no usable document: {num_read} were read, all of them shorter than"
            f" min_characters = {min_characters}, and {num_rejects} inputs were unreadable.",
            next_step="check the paths and kinds of `sources`, or lower `min_characters`",
        )
