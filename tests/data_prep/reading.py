"""What sources give of their files, read as a whole or in parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources import FilePart, Skipped, SourceConfig


def read(config: SourceConfig, bounds: Sequence[int] = ()) -> list[Any]:
    """All results of all files, each in parts that begin at 0 and at every bound, in order."""
    return [
        result
        for file in config.list_files()
        for start, end in zip([0, *bounds], [*bounds, None], strict=True)
        for result in config.read(FilePart(file, start, end))
    ]


def read_split(config: SourceConfig, size_bytes: int, part_bytes: int) -> list[Any]:
    """All results of all files, each in the parts of about `part_bytes` that its source makes of it."""
    return [
        result
        for file in config.list_files()
        for part in config.split_file(file, size_bytes, part_bytes)
        for result in config.read(part)
    ]


def documents(results: Iterable[Any]) -> list[Document]:
    return [result for result in results if isinstance(result, Document)]


def rejects(results: Iterable[Any]) -> list[Reject]:
    return [result for result in results if isinstance(result, Reject)]


def reasons(results: Iterable[Any]) -> list[str]:
    return [result.reason for result in results if isinstance(result, Skipped)]
