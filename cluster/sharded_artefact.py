"""Artefacts made of shards, which Ray tasks make."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as replace_fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cluster.artefacts.manifest import MANIFEST_NAME, FileEntry, InputEntry, Manifest, hash_json
from cluster.artefacts.parts import TEMPORARY, PartedArtefact
from cluster.artefacts.shard_records import LOG_NAME, SHARD_RECORDS, ShardRecord, sum_stats
from cluster.artefacts.storage import QUARANTINE_NAME, Damage, quarantine, storage_errors
from cluster.shards import Shard, map_shards

Finish = Callable[[Path, Sequence[ShardRecord]], Mapping[str, Any]]
"""Writes the artefact's sidecar files into the directory and returns extra statistics; deterministic."""


def build_sharded_artefact(
    directory: Path,
    kind: str,
    *,
    shards: Sequence[Shard],
    config: Mapping[str, Any],
    inputs: Sequence[InputEntry],
    finish: Finish = lambda directory, records: {},
    max_rejects: int = 0,
    num_cpus: float | None = 1.0,
    replace: bool = False,
    before: Callable[[], object] | None = None,
    made_with: Sequence[str] = (),
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
        before: called once if any shard has to be made, to make the inputs of the shards, which need not exist any
            more while the artefact is intact.
        made_with: versions of the libraries that decide bytes. Shards that others made are neither continued nor
            adopted, so that no artefact mixes them; a finished artefact stays what it is.

    Raises:
        ConfigError: a committed artefact of other inputs or settings is in the way and `replace` is False.
        CorruptArtefactError: a repaired file differs from the first one, or a manifest cannot be read.
    """
    contents = [[entry.kind, entry.fingerprint] for entry in inputs]
    key = hash_json([kind, config, contents, [shard.identity for shard in shards]])
    if made_with:
        shards = [replace_fields(each, identity=hash_json([each.identity, *made_with])) for each in shards]
    artefact = PartedArtefact(
        directory,
        kind,
        key,
        config,
        inputs,
        {shard.file: shard.identity for shard in shards},
        SHARD_RECORDS,
    )
    if intact := artefact.inspect(replace=replace):
        return intact
    workspace = artefact.prepare()
    if artefact.is_same:
        # A repair must reproduce the recorded hash; `conclude` checks that.
        recorded = [SHARD_RECORDS.read(workspace, shard.file) for shard in shards]
        shards = [
            shard if record is None else replace_fields(shard, identity=record.identity)
            for shard, record in zip(shards, recorded, strict=True)
        ]
    records = map_shards(
        shards,
        workspace,
        title=f"{kind} (repair)" if artefact.is_same else kind,
        max_rejects=max_rejects,
        num_cpus=num_cpus,
        before=before,
    )
    with storage_errors(workspace):
        if not artefact.is_same:
            # What this process has neither made nor verified would become a part of the artefact.
            for name in set(_names(workspace)) - {shard.file for shard in shards}:
                quarantine(workspace, Damage(name, "not made by this command"))
        extra = finish(workspace, records)
    stats = {"rejects": sum(len(record.rejects) for record in records), **sum_stats(records), **extra}
    entries = {record.entry.path: record.entry for record in records}
    sidecars = [FileEntry.of(workspace / name, name) for name in _names(workspace) if name not in entries]
    return artefact.conclude([*entries.values(), *sidecars], stats)


def _names(directory: Path) -> Iterator[str]:
    """Names of all files of an artefact, without what lies beside its contents. A task that Ray gave up, or of a driver
    that died, may still be writing a temporary file."""
    beside = {SHARD_RECORDS.directory_name, QUARANTINE_NAME, MANIFEST_NAME, LOG_NAME}
    top = os.path.join(directory, "")
    for parent, folders, files in os.walk(directory):
        if parent == str(directory):
            folders[:] = set(folders) - beside
            files = set(files) - beside
        for name in sorted(files):
            path = os.path.join(parent, name)
            if not fnmatch(name, TEMPORARY) and os.path.isfile(path):
                yield path.removeprefix(top).replace(os.sep, "/")
