"""`map_shards`: one Ray task per output shard, resumable, and the sharded artefacts built from it.

A shard is a pure function of its input split and of the configuration. A task writes it under a temporary
name, hashes it, renames it and only then writes its record; so a record always describes a finished file, and
a run that was killed redoes only what has no good record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from cluster.errors import ClozeError, ConfigError, CorruptArtefactError, TooManyRejectsError, WorkersLostError
from cluster.manifest import (
    MANIFEST_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    hash_file,
    hash_json,
    read_manifest,
    write_durably,
)
from cluster.progress import progress
from cluster.storage import (
    Damage,
    commit,
    find_damage,
    hash_tree,
    is_committed,
    quarantine,
    staging_directory,
    storage_errors,
)

RECORDS_NAME = "shard-records"
TASK_RETRIES = 3
"""How often Ray runs a task again whose process or node died."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One unit of work: an output file and what it is made from."""

    file: str
    """Name of the output file in the artefact's directory."""
    split: Any
    """Picklable description of the input; handed to the shard function."""
    identity: str
    """Hash of everything that determines the output: input bytes, split, settings. No paths."""


@dataclass(frozen=True, slots=True)
class Reject:
    """An input that could not be read."""

    uri: str
    byte_offset: int
    """Offset in the (decompressed) input at which the unreadable part starts."""
    reason: str


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a shard function returns after it wrote its file."""

    rows: int
    tokens: int | None = None
    stats: dict[str, int] = field(default_factory=dict)
    """Counts that add up over shards."""
    rejects: tuple[Reject, ...] = ()


class ShardRecord(BaseModel):
    """The durable note that a shard is finished."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    entry: FileEntry
    stats: dict[str, int]
    rejects: tuple[Reject, ...]


ShardFunction = Callable[[Any, Path], ShardResult]
"""Writes the shard for a split to the given path. Runs in a Ray task."""

Finish = Callable[[Path, Sequence[ShardRecord]], Mapping[str, Any]]
"""Writes the artefact's sidecar files into the directory and returns extra statistics. Must be deterministic."""


def map_shards(
    function: ShardFunction,
    shards: Sequence[Shard],
    directory: Path,
    *,
    title: str,
    max_rejects: int = 0,
    num_cpus: float = 1.0,
    memory_bytes: int | None = None,
    max_in_flight: int | None = None,
) -> list[ShardRecord]:
    """Make every shard in `directory` that is not there yet and return all records, in the order of `shards`.

    Needs a connected Ray cluster whose nodes all see `directory`.

    Args:
        max_rejects: how many unreadable inputs are tolerated over all shards.
        num_cpus, memory_bytes: resources of one task.
        max_in_flight: tasks submitted at a time; None takes twice the cluster's CPUs.

    Raises:
        TooManyRejectsError: finished shards are kept.
        WorkersLostError: a task's process died TASK_RETRIES times over.
        ClozeError: whatever the shard function raised.
    """
    with storage_errors(directory):
        (directory / RECORDS_NAME).mkdir(parents=True, exist_ok=True)
    finished = {shard.file: record for shard in shards if (record := _good_record(directory, shard))}
    with progress(title, len(shards)) as advance:
        advance(len(finished), "already done" if finished else "")
        _check_rejects(finished.values(), max_rejects)
        pending = [shard for shard in shards if shard.file not in finished]
        if pending:
            options: dict[str, Any] = {"num_cpus": num_cpus, "max_retries": TASK_RETRIES}
            if memory_bytes is not None:
                options["memory"] = memory_bytes
            for record in _run(function, pending, directory, options, max_in_flight):
                finished[record.entry.path] = record
                advance(1, _describe(finished.values()))
                _check_rejects(finished.values(), max_rejects)
    return [finished[shard.file] for shard in shards]


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
) -> Manifest:
    """Make, continue, repair or simply confirm a sharded artefact; whichever is needed.

    A committed artefact of the same inputs and settings is verified; damaged files are quarantined and made
    again, and must come out as they were.

    Args:
        config: what determines the content besides the inputs; no paths.
        finish: writes sidecar files once all shards exist.
        replace: allow a committed artefact of other inputs or settings to be replaced.

    Raises:
        ConfigError: a committed artefact of other inputs or settings is in the way and `replace` is False.
        CorruptArtefactError: a repaired file does not come out as it was.
    """
    key = hash_json([kind, config, [[e.kind, e.fingerprint] for e in inputs], [s.identity for s in shards]])
    if is_committed(directory):
        manifest = read_manifest(directory)
        if manifest.stats.get("build_key") == key:
            return _verify_or_repair(directory, manifest, function, shards, finish, max_rejects, num_cpus)
        if not replace:
            raise ConfigError(
                f"{directory} holds {manifest.kind} made from other inputs or settings:"
                f" {describe_changes(manifest, config, inputs)}.",
                kept="the committed artefact is untouched",
                next_step="add --replace to make it anew, or choose another `out`",
            )
    staging = staging_directory(directory, key)
    records = map_shards(
        function, shards, staging, title=kind, max_rejects=max_rejects, num_cpus=num_cpus
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


def sum_stats(records: Sequence[ShardRecord]) -> dict[str, int]:
    """The shards' counts added up, with `rows` and (where there are any) `tokens`."""
    totals: dict[str, int] = {"rows": sum(record.entry.rows or 0 for record in records)}
    if any(record.entry.tokens is not None for record in records):
        totals["tokens"] = sum(record.entry.tokens or 0 for record in records)
    for record in records:
        for name, count in record.stats.items():
            totals[name] = totals.get(name, 0) + count
    return totals


def read_records(directory: Path) -> list[ShardRecord]:
    """Every readable shard record of an artefact, by file name; tells the rejects of each shard."""
    paths = sorted((directory / RECORDS_NAME).glob("*.json"))
    return [ShardRecord.model_validate(orjson.loads(path.read_bytes())) for path in paths]


def describe_changes(manifest: Manifest, config: Mapping[str, Any], inputs: Sequence[InputEntry]) -> str:
    """What differs between a committed artefact and what is asked for now, for people."""
    old, new = manifest.config, orjson.loads(orjson.dumps(dict(config)))
    changed = [
        f"{key} was {old.get(key)!r}, is {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    before = {entry.fingerprint for entry in manifest.inputs}
    now = {entry.fingerprint for entry in inputs}
    if before != now:
        changed.append(f"{len(now - before)} inputs are new and {len(before - now)} are gone")
    return "; ".join(changed) or "the split of the work differs"


def _run(
    function: ShardFunction,
    pending: Sequence[Shard],
    directory: Path,
    options: dict[str, Any],
    max_in_flight: int | None,
):
    """Yield records as tasks finish, with at most `max_in_flight` tasks submitted."""
    import ray

    from cluster.runtime import cluster_cpus

    remote = ray.remote(**options)(_make_shard)
    shared = ray.put(function)
    window = max_in_flight or 2 * cluster_cpus()
    waiting = list(reversed(pending))
    running: dict[Any, Shard] = {}
    try:
        while waiting or running:
            while waiting and len(running) < window:
                shard = waiting.pop()
                running[remote.remote(shared, shard, str(directory))] = shard
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            shard = running.pop(ready)
            yield _result_of(ready, shard)
    finally:
        for reference in running:
            ray.cancel(reference)


def _result_of(reference: Any, shard: Shard) -> ShardRecord:
    import ray
    from ray.exceptions import RayTaskError, WorkerCrashedError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, ClozeError):
            raise error.cause from None
        raise
    except (WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError) as error:
        raise WorkersLostError(
            f"The task for {shard.file} died {TASK_RETRIES + 1} times: {error}",
            kept="all finished shards",
            next_step="run the same command again; if it dies at the same shard, give tasks more memory",
        ) from error


def _make_shard(function: ShardFunction, shard: Shard, directory: str) -> ShardRecord:
    """Body of the Ray task: temporary name, hash, rename, record."""
    target = Path(directory) / shard.file
    temporary = target.with_name(f".{shard.file}.{os.getpid()}.tmp")
    with storage_errors(target):
        try:
            result = function(shard.split, temporary)
            digest, size_bytes = hash_file(temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        record = ShardRecord(
            identity=shard.identity,
            entry=FileEntry(
                path=shard.file, size_bytes=size_bytes, xxh3_128=digest, rows=result.rows, tokens=result.tokens
            ),
            stats=result.stats,
            rejects=result.rejects,
        )
        write_durably(_record_path(Path(directory), shard.file), orjson.dumps(record.model_dump(mode="json")))
    return record


def _good_record(directory: Path, shard: Shard) -> ShardRecord | None:
    """The shard's record when its file is there with the recorded bytes, else None."""
    try:
        record = ShardRecord.model_validate(orjson.loads(_record_path(directory, shard.file).read_bytes()))
        digest, _ = hash_file(directory / shard.file)
    except (OSError, orjson.JSONDecodeError, ValidationError):
        return None
    return record if record.identity == shard.identity and digest == record.entry.xxh3_128 else None


def _verify_or_repair(
    directory: Path,
    manifest: Manifest,
    function: ShardFunction,
    shards: Sequence[Shard],
    finish: Finish,
    max_rejects: int,
    num_cpus: float,
) -> Manifest:
    damages = find_damage(directory, manifest)
    if not damages:
        return manifest
    for damage in damages:
        quarantine(directory, damage)
        _record_path(directory, damage.path).unlink(missing_ok=True)
    records = map_shards(
        function, shards, directory, title=f"{manifest.kind} (repair)", max_rejects=max_rejects, num_cpus=num_cpus
    )
    with storage_errors(directory):
        finish(directory, records)
    if remaining := find_damage(directory, manifest):
        listed = "\n".join(f"  {damage}" for damage in remaining)
        raise CorruptArtefactError(
            f"{directory} was damaged, and the repaired files differ from the first ones:\n{listed}",
            kept="the damaged files, in its quarantine directory",
            next_step="check that sources and library versions are those it was made with, or add --replace",
        )
    return manifest


def _entries(directory: Path, records: Sequence[ShardRecord]) -> list[FileEntry]:
    """Entries of the shards and of the sidecar files; records and temporary files stay out."""
    known = {record.entry.path: record.entry for record in records}
    for leftover in directory.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    sidecars = [
        entry
        for entry in hash_tree(directory)
        if entry.path not in known and entry.path != MANIFEST_NAME and not entry.path.startswith(RECORDS_NAME)
    ]
    return [*known.values(), *sidecars]


def _record_path(directory: Path, file: str) -> Path:
    return directory / RECORDS_NAME / f"{file}.json"


def _check_rejects(records: Any, max_rejects: int) -> None:
    rejects = [reject for record in records for reject in record.rejects]
    if len(rejects) > max_rejects:
        shown = "\n".join(f"  {r.uri} at byte {r.byte_offset}: {r.reason}" for r in rejects[:10])
        raise TooManyRejectsError(
            f"{len(rejects)} unreadable inputs, but max_rejects is {max_rejects}:\n{shown}",
            kept="all finished shards",
            next_step="replace the damaged sources, or raise max_rejects, and run the same command again",
        )


def _describe(records: Any) -> str:
    totals = sum_stats(list(records))
    return ", ".join(f"{totals[name]:,} {name}" for name in ("rows", "tokens") if name in totals)


def damaged_files(directory: Path) -> list[Damage]:
    """Every damaged file of a committed artefact, without repairing anything."""
    return find_damage(directory, read_manifest(directory))
