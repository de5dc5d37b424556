"""Artefacts made of shards, which Ray tasks make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import MANIFEST_NAME, FileEntry, InputEntry, Manifest, hash_file, hash_json
from cluster.artefacts.parts import TEMPORARY, PartedArtefact
from cluster.artefacts.shard_log import LOG_NAME
from cluster.artefacts.shard_records import SHARD_RECORDS, ShardRecord, sum_stats
from cluster.artefacts.storage import QUARANTINE_NAME, storage_errors
from cluster.shards import Shard, ShardFunction, map_shards

Finish = Callable[[Path, Sequence[ShardRecord]], Mapping[str, Any]]
"""Writes the artefact's sidecar files into the directory and returns extra statistics; deterministic."""


def build_sharded_artefact(
    directory: Path,
    kind: str,
    *,
    function: ShardFunction,
    shards: Sequence[Shard],
    config: Mapping[str, Any],
    inputs: Sequence[InputEntry],
    finish: Finish,
    max_rejects: int = 0,
    num_cpus: float | None = 1.0,
    replace: bool = False,
    before: Callable[[], object] | None = None,
) -> Manifest:
    """Make, continue, repair or only verify a sharded artefact, whichever is needed.

    A committed artefact of the same inputs and settings is verified; damaged files are quarantined and made
    again, and must come out as they were.

    Args:
        config: settings that determine the content besides the inputs; no paths.
        num_cpus: as in `map_shards`.
        finish: writes sidecar files once all shards exist.
        replace: allow a committed artefact of other inputs or settings to be replaced. Its shards of the same identity
            are adopted.
        before: called once if any shard has to be made, to make the inputs of `function`, which need not exist any
            more while the artefact is intact.

    Raises:
        ConfigError: a committed artefact of other inputs or settings is in the way and `replace` is False.
        CorruptArtefactError: a repaired file differs from the first one, or a manifest cannot be read.
    """
    artefact = PartedArtefact(
        directory,
        kind,
        hash_json([kind, config, [[e.kind, e.fingerprint] for e in inputs], [s.identity for s in shards]]),
        config,
        inputs,
        [shard.part for shard in shards],
        SHARD_RECORDS,
    )
    condition = artefact.inspect(replace=replace)
    if condition.committed and condition.is_intact:
        return condition.committed
    workspace = artefact.prepare(condition)
    records = map_shards(
        function,
        shards,
        workspace,
        title=f"{kind} (repair)" if condition.same else kind,
        max_rejects=max_rejects,
        num_cpus=num_cpus,
        before=before,
    )
    with storage_errors(workspace):
        extra = finish(workspace, records)
    stats = {"rejects": sum(len(record.rejects) for record in records), **sum_stats(records), **extra}
    return artefact.conclude(condition, workspace, _entries(workspace, records), stats)


def _entries(directory: Path, records: Sequence[ShardRecord]) -> list[FileEntry]:
    """Entries of the shards, known from their records, and of the sidecar files, hashed now."""
    known = {record.entry.path: record.entry for record in records}
    others = (SHARD_RECORDS.directory_name, QUARANTINE_NAME, MANIFEST_NAME, LOG_NAME)
    sidecars = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if path.match(TEMPORARY):
            continue  # a task that Ray gave up, or of a driver that died, may still be writing
        if path.is_file() and relative.as_posix() not in known and relative.parts[0] not in others:
            digest, size_bytes = hash_file(path)
            sidecars.append(FileEntry(path=relative.as_posix(), size_bytes=size_bytes, xxh3_128=digest))
    return [*known.values(), *sidecars]
