"""The state shared by all stages of one preparation: settings, shards, documents, directories."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import InputEntry, Manifest, hash_json
from cluster.artefacts.shard_records import ShardRecord, sum_stats
from cluster.shards import Shard, WriteShard, build_sharded_artefact
from data_prep.config import PreparationConfig
from data_prep.inputs import ShardInput
from data_prep.layout import DOCUMENTS, SELECTION_FILES, STAGES, WORK, ShardNames

_DECIDING = (
    *("blingfire", "datasets", "fasttext", "fastwarc", "ftfy", "lxml"),
    *("mwparserfromhell", "mwxml", "numpy", "phonenumbers", "py3langid", "pyarrow", "python-stdnum"),
    *("regex", "rensa", "resiliparse", "sentencepiece", "sentencex", "tokenizers", "tokie"),
)
"""Libraries whose versions may change what a preparation writes."""


@cache
def _library_versions() -> tuple[str, ...]:
    """The libraries that decide bytes, and Python with its tables of Unicode, as `name version`."""
    found = [f"python {platform.python_version()}"]
    for name in _DECIDING:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return tuple(found)


@dataclass(slots=True)
class Workspace:
    """One run of the stages."""

    config: PreparationConfig
    shards: Sequence[ShardInput]
    """The input of every document shard; dedup, decontamination and tokens have one file for each."""
    replace: bool
    """Whether artefacts of other sources or settings may be replaced."""
    documents: Manifest = field(init=False)
    """The documents, which the first stage makes and all others read."""

    def documents_path(self, shard: int) -> Path:
        """Path of a document shard."""
        return self.directory(DOCUMENTS) / self.documents.files[shard].path

    def selection_path(self, selection: Manifest, shard: int) -> Path:
        """Path of the selection of a document shard in the artefact that decided it."""
        return self.directory(selection.kind) / SELECTION_FILES.file(shard, len(self.shards))

    def selection_hashes(self, selection: Manifest) -> list[str]:
        """Hash of every shard's selection file."""
        hashes = {entry.path: entry.xxh3_128 for entry in selection.files}
        return [hashes[file] for file in SELECTION_FILES.files(len(self.shards))]

    def directory(self, kind: str) -> Path:
        """Directory of an artefact of this preparation: a stage, or a step that leads to one."""
        return self.config.out / kind if kind in STAGES else self.config.out / WORK / kind

    def build(
        self,
        kind: str,
        files: ShardNames | Sequence[str],
        make: Callable[[int], WriteShard],
        *,
        config: Mapping[str, Any],
        inputs: Sequence[Manifest | InputEntry],
        contents: Callable[[int], Any] | None = None,
        **options: Any,
    ) -> Manifest:
        """Make, continue, repair or confirm a stage or a step. A step of other inputs or settings is replaced.

        Args:
            kind: also the name of its directory.
            files: its shards: one for each document shard, or those that are listed.
            make: gives what writes a shard, by its number; called in this process when its task is submitted: there may
                be very many.
            config: the settings that it depends on.
            inputs: artefacts of this preparation, and files.
            contents: everything that determines a shard, by its number, as JSON-like data; None takes the settings, the
                artefacts among the inputs, and the number.
            options: as in `build_sharded_artefact`.
        """
        sizes: Sequence[int] = ()
        if isinstance(files, ShardNames):
            files = files.files(len(self.shards))
            # For the time left, and to find tiny shards.
            sizes = [own.size_bytes for own in (self.shards if kind == DOCUMENTS else self.documents.files)]
        fingerprints = [one.fingerprint for one in inputs if isinstance(one, Manifest)]
        shards = [
            Shard(
                file,
                partial(make, number),
                hash_json(contents(number) if contents else [config, *fingerprints, number]),
                sizes[number] if sizes else 0,
            )
            for number, file in enumerate(files)
        ]
        entries = [
            InputEntry(kind=one.kind, uri=str(self.directory(one.kind)), fingerprint=one.fingerprint)
            if isinstance(one, Manifest)
            else one
            for one in inputs
        ]
        return build_sharded_artefact(
            self.directory(kind),
            kind,
            shards=shards,
            config=config,
            inputs=entries,
            replace=self.replace or kind not in STAGES,
            made_with=_library_versions(),
            **options,
        )

    def by_source(self, records: Sequence[ShardRecord]) -> dict[str, dict[str, int]]:
        """The counts of records, one for each document shard, added up for each source."""
        totals: dict[str, dict[str, int]] = {source.name: {} for source in self.config.sources}
        for shard, record in zip(self.shards, records, strict=True):
            own = totals[shard.source.name]
            for key, count in (sum_stats([record]) | {"rejects": len(record.rejects)}).items():
                own[key] = own.get(key, 0) + count
        return totals
