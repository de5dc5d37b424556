"""Records of finished shards: rows, tokens, counts, and the inputs that could not be read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.artefacts.manifest import FileEntry
from cluster.artefacts.parts import PartRecord, PartRecords


@dataclass(frozen=True, slots=True)
class Reject:
    """An input that could not be read."""

    uri: str
    byte_offset: int
    """Offset in the (decompressed) input at which the unreadable part starts."""
    reason: str
    source: str = ""
    """Name of the source that the input belongs to: file names repeat among sources."""

    def __str__(self) -> str:
        of = f" of {self.source}" if self.source else ""
        return f"{self.uri}{of} at byte {self.byte_offset}: {self.reason}"


class ShardRecord(PartRecord):
    """The durable note that a shard is finished."""

    entry: FileEntry
    stats: dict[str, int]
    """Counts that add up over shards."""
    rejects: tuple[Reject, ...]
    notes: tuple[dict[str, Any], ...] = ()
    """A few examples for people to look at, as JSON-like data; they enter no fingerprint."""

    @property
    def part_name(self) -> str:
        """The shard's file name."""
        return self.entry.path

    @property
    def part_files(self) -> tuple[FileEntry, ...]:
        """The shard's only file."""
        return (self.entry,)

    def renamed(self, name: str) -> ShardRecord:
        """The record if the shard's file had another name."""
        return self.model_copy(update={"entry": replace(self.entry, path=name)})

    def slim(self) -> ShardRecord:
        """Without notes; names of counts are shared among records."""
        stats = {sys.intern(name): count for name, count in self.stats.items()}
        return self.model_copy(update={"stats": stats, "notes": ()})


SHARD_RECORDS = PartRecords("shard-records", ShardRecord)


def sum_stats(records: Sequence[ShardRecord]) -> dict[str, int]:
    """The shards' counts added up, with `rows` and (where there are any) `tokens`."""
    totals: dict[str, int] = {"rows": sum(record.entry.rows or 0 for record in records)}
    if any(record.entry.tokens is not None for record in records):
        totals["tokens"] = sum(record.entry.tokens or 0 for record in records)
    for record in records:
        for name, count in record.stats.items():
            totals[name] = totals.get(name, 0) + count
    return totals
