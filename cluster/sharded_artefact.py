"""Artefacts made of shards: made, continued after a crash, confirmed or repaired; whichever is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.artefacts.adoption import adopt_shards
from cluster.artefacts.errors import ConfigError, CorruptArtefactError
from cluster.artefacts.manifest import (
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    hash_file,
    hash_json,
    read_manifest,
)
from cluster.artefacts.shard_log import LOG_NAME
from cluster.artefacts.storage import (
    QUARANTINE_NAME,
    Damage,
    commit,
    find_damage,
    is_committed,
    quarantine,
    staging_directory,
    storage_errors,
)
from cluster.shards import (
    RECORDS_NAME,
    TEMPORARY,
    Shard,
    ShardFunction,
    ShardRecord,
    describe_changes,
    find_record_damage,
    map_shards,
    record_path,
    sum_stats,
    was_made,
)

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
    num_cpus: float = 1.0,
    replace: bool = False,
    before: Callable[[], object] | None = None,
) -> Manifest:
    """Make, continue, repair or simply confirm a sharded artefact; whichever is needed.

    A committed artefact of the same inputs and settings is verified; damaged files are quarantined and made
    again, and must come out as they were.

    Args:
        config: what determines the content besides the inputs; no paths.
        finish: writes sidecar files once all shards exist.
        replace: allow a committed artefact of other inputs or settings to be replaced. Shards of it that were made
            from the same are taken over.
        before: called once if any shard has to be made, to make what `function` reads; what an intact artefact
            was made from need not be there any more.

    Raises:
        ConfigError: a committed artefact of other inputs or settings is in the way and `replace` is False.
        CorruptArtefactError: a repaired file does not come out as it was.
    """
    key = hash_json([kind, config, [[e.kind, e.fingerprint] for e in inputs], [s.identity for s in shards]])
    staging = staging_directory(directory, key)
    manifest = _read_or_salvage(directory, staging, shards, replace)
    if manifest is not None:
        if manifest.stats.get("build_key") == key:
            return _verify_or_repair(
                directory, manifest, function, shards, finish, max_rejects, num_cpus, before
            )
        if not replace:
            raise ConfigError(
                f"{directory} holds {manifest.kind} made from other inputs or settings:"
                f" {describe_changes(manifest, config, inputs)}.",
                kept="the committed artefact is untouched",
                next_step="add --replace to make it anew, or choose another `out`",
            )
        adopt_shards(directory, staging, shards)
    records = map_shards(
        function,
        shards,
        staging,
        title=kind,
        max_rejects=max_rejects,
        num_cpus=num_cpus,
        before=before,
    )
    with storage_errors(staging):
        extra = finish(staging, records)
    files = _entries(staging, records)
    stats = {"build_key": key, "rejects": sum(len(record.rejects) for record in records)}
    return commit(
        staging,
        directory,
        kind,
        config=config,
        inputs=inputs,
        files=files,
        stats=stats | sum_stats(records) | dict(extra),
    )


def _read_or_salvage(
    directory: Path, staging: Path, shards: Sequence[Shard], replace: bool
) -> Manifest | None:
    """The manifest of the artefact; None when the artefact is to be made.

    An artefact that lost its manifest, or whose manifest is damaged, becomes work in progress again: its
    shards are judged one by one by their records, and the good ones need no redoing.
    """
    try:
        return read_manifest(directory)
    except CorruptArtefactError as error:
        damage = Damage(MANIFEST_NAME, error.problem)
        if staging.exists() or not any(was_made(directory, shard) for shard in shards):
            if replace or not is_committed(directory):
                return None
            raise CorruptArtefactError(
                error.problem,
                kept="everything in it; whether it holds what is asked for cannot be told any more",
                next_step="add --replace to make it anew, or choose another `out`",
            ) from None
    with storage_errors(directory):
        quarantine(directory, damage)
        os.replace(directory, staging)
    return None


def _verify_or_repair(
    directory: Path,
    manifest: Manifest,
    function: ShardFunction,
    shards: Sequence[Shard],
    finish: Finish,
    max_rejects: int,
    num_cpus: float,
    before: Callable[[], object] | None,
) -> Manifest:
    damages = find_damage(directory, manifest)
    records_damaged = find_record_damage(directory, manifest)
    if not damages and not records_damaged:
        return manifest
    with storage_errors(directory):
        for damage in damages:
            quarantine(directory, damage)
            record_path(directory, damage.path).unlink(missing_ok=True)
        for damage in records_damaged:
            (directory / damage.path).unlink(missing_ok=True)
    records = map_shards(
        function,
        shards,
        directory,
        title=f"{manifest.kind} (repair)",
        max_rejects=max_rejects,
        num_cpus=num_cpus,
        before=before,
    )
    with storage_errors(directory):
        finish(directory, records)
    if remaining := find_damage(directory, manifest):
        listed = "\n".join(f"  {damage}" for damage in remaining)
        raise CorruptArtefactError(
            f"{directory} was damaged, and the repaired files differ from the first ones:\n{listed}",
            kept="the damaged files, in its quarantine directory",
            next_step="check that sources and library versions are those it was made with; to make everything"
            " anew, move the directory away and run the same command",
        )
    return manifest


def _entries(directory: Path, records: Sequence[ShardRecord]) -> list[FileEntry]:
    """Entries of the shards, known from their records, and of the sidecar files, hashed now."""
    known = {record.entry.path: record.entry for record in records}
    others = (RECORDS_NAME, QUARANTINE_NAME, MANIFEST_NAME, LOG_NAME)
    sidecars = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if path.match(TEMPORARY):
            continue  # a task that Ray gave up, or of a driver that died, may still be writing
        if path.is_file() and relative.as_posix() not in known and relative.parts[0] not in others:
            digest, size_bytes = hash_file(path)
            sidecars.append(FileEntry(path=relative.as_posix(), size_bytes=size_bytes, xxh3_128=digest))
    return [*known.values(), *sidecars]
