"""The state shared by all stages of one preparation: settings, source files, directories."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import InputEntry, Manifest, hash_json
from cluster.artefacts.shard_records import ShardRecord, sum_stats
from cluster.sharded_artefact import build_sharded_artefact
from cluster.shards import Shard, WriteShard
from data_prep.config import PreparationConfig
from data_prep.inputs import Groups
from data_prep.layout import DOCUMENTS, SELECTION_FILES, STAGES, WORK
from data_prep.sources.base import SourceConfig

_DECIDING = (
    *("blingfire", "datasets", "fasttext", "fastwarc", "ftfy", "lxml"),
    *("mwparserfromhell", "mwxml", "numpy", "phonenumbers", "py3langid", "pyarrow", "python-stdnum"),
    *("regex", "rensa", "resiliparse", "sentencepiece", "sentencex", "tokenizers", "tokie"),
)
"""Libraries whose versions may change what a preparation writes."""


@cache
def library_versions() -> tuple[str, ...]:
    """The libraries that decide bytes, and Python with its tables of Unicode, as `name version`."""
    found = [f"python {platform.python_version()}"]
    for name in _DECIDING:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Workspace:
    """One run of the stages."""

    config: PreparationConfig
    groups: Groups
    """The source parts of every document shard."""
    digests: Sequence[str]
    """xxh3_128 hex digest of every source file."""
    replace: bool
    """Whether artefacts of other sources or settings may be replaced."""

    @property
    def out(self) -> Path:
        return self.config.out

    @property
    def num_shards(self) -> int:
        """Document shards; dedup, decontamination and tokens have one file for each."""
        return len(self.groups)

    def source_of(self, shard: int) -> SourceConfig:
        """The source that all documents of a shard come from."""
        return self.groups.inputs.sources[self.groups.source_number(shard)]

    def documents_path(self, documents: Manifest, shard: int) -> Path:
        """Path of a document shard."""
        return self.out / DOCUMENTS / documents.files[shard].path

    def selection_path(self, selection: Manifest, shard: int) -> Path:
        """Path of the selection of a document shard in the artefact that decided it."""
        return self.out / selection.kind / SELECTION_FILES.file(shard, self.num_shards)

    def selection_hashes(self, selection: Manifest) -> list[str]:
        """Hash of every shard's selection file."""
        hashes = {entry.path: entry.xxh3_128 for entry in selection.files}
        return [hashes[file] for file in SELECTION_FILES.files(self.num_shards)]

    def directory(self, kind: str) -> Path:
        """Directory of an artefact of this preparation: a stage, or a step that leads to one."""
        return self.out / kind if kind in STAGES else self.out / WORK / kind

    def build(
        self,
        kind: str,
        files: Sequence[str],
        make: Callable[[int], WriteShard],
        contents: Callable[[int], Any],
        sizes: Sequence[int] | None = None,
        *,
        inputs: Sequence[Manifest | InputEntry],
        **options: Any,
    ) -> Manifest:
        """Make, continue, repair or confirm a stage or a step. A step of other inputs or settings is replaced.

        Args:
            kind: also the name of its directory.
            files: names of its shards; the other arguments are by their number.
            make: gives what writes a shard; called in this process when its task is submitted: there may be very many.
            contents: everything that determines a shard, as JSON-like data.
            sizes: bytes that each shard is made from, for the time left, and to find tiny shards; None if not known.
            inputs: artefacts of this preparation, and files.
            options: as in `build_sharded_artefact`.
        """
        shards = [
            Shard(file, partial(make, number), hash_json(contents(number)), size)
            for number, (file, size) in enumerate(zip(files, sizes or [0] * len(files), strict=True))
        ]
        entries = [
            InputEntry(kind=one.kind, uri=str(self.directory(one.kind)), fingerprint=one.fingerprint)
            if isinstance(one, Manifest)
            else one
            for one in inputs
        ]
        replace = self.replace or kind not in STAGES
        return build_sharded_artefact(
            self.directory(kind), kind, shards=shards, inputs=entries, replace=replace, **options
        )

    def by_source(self, records: Sequence[ShardRecord]) -> dict[str, dict[str, int]]:
        """The counts of records, one for each document shard, added up for each source."""
        totals: dict[str, dict[str, int]] = {source.name: {} for source in self.config.sources}
        for shard, record in enumerate(records):
            own = totals[self.source_of(shard).name]
            for key, count in (sum_stats([record]) | {"rejects": len(record.rejects)}).items():
                own[key] = own.get(key, 0) + count
        return totals
