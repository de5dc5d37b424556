"""`map_shards`: one Ray task per output shard, resumable.

A shard is a pure function of its input split and of the configuration. A task writes it under a temporary
name, hashes it, renames it and only then writes its record; so a record always describes a finished file, and
a run that was killed redoes only what has no good record.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from pydantic import BaseModel, ConfigDict

from cluster.artefacts.errors import ClozeError, TooManyRejectsError, WorkersLostError
from cluster.artefacts.manifest import FileEntry, InputEntry, Manifest, hash_file, seal, unseal, write_durably
from cluster.artefacts.shard_log import Effort, ShardLog, measure_effort
from cluster.artefacts.shard_status import read_status, remove_status
from cluster.artefacts.storage import Damage, storage_errors
from cluster.progress import progress

RECORDS_NAME = "shard-records"
TEMPORARY = ".*.tmp"
"""Pattern of the names that files have while they are written."""
SHOWN_CHANGES = 5
"""Different settings that a refusal names."""
STATUS_INTERVAL_S = 2.0
"""Seconds without a finished shard after which people are told what is being done."""
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
    size_bytes: int = 0
    """Bytes of input, for the estimate of the time left."""


@dataclass(frozen=True, slots=True)
class Reject:
    """An input that could not be read."""

    uri: str
    byte_offset: int
    """Offset in the (decompressed) input at which the unreadable part starts."""
    reason: str
    source: str = ""
    """Which of several collections of inputs it belongs to: names of files repeat among them."""

    def __str__(self) -> str:
        of = f" of {self.source}" if self.source else ""
        return f"{self.uri}{of} at byte {self.byte_offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a shard function returns after it wrote its file."""

    rows: int
    tokens: int | None = None
    stats: dict[str, int] = field(default_factory=dict)
    """Counts that add up over shards."""
    rejects: tuple[Reject, ...] = ()
    notes: tuple[dict[str, Any], ...] = ()
    """A few things for people to look at, as JSON-like data; they enter no fingerprint."""
    text_bytes: int | None = None
    """Bytes of text that were handled, for the log; None takes the shard's `size_bytes`."""


class ShardRecord(BaseModel):
    """The durable note that a shard is finished."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    entry: FileEntry
    stats: dict[str, int]
    rejects: tuple[Reject, ...]
    notes: tuple[dict[str, Any], ...] = ()


ShardFunction = Callable[[Any, Path], ShardResult]
"""Writes the shard for a split to the given path. Runs in a Ray task."""


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
    before: Callable[[], object] | None = None,
) -> list[ShardRecord]:
    """Make every shard in `directory` that is not there yet and return all records, in the order of `shards`.

    Needs a connected Ray cluster whose nodes all see `directory`.

    Args:
        max_rejects: how many unreadable inputs are tolerated over all shards.
        num_cpus, memory_bytes: resources of one task.
        max_in_flight: tasks submitted at a time; None takes `tasks_in_flight()`.
        before: called once, here, before the first task, and only if a shard has to be made: makes what the shard
            function reads where that need not be kept.

    Raises:
        TooManyRejectsError: finished shards are kept.
        WorkersLostError: a task's process died TASK_RETRIES times over.
        ClozeError: whatever the shard function raised.
    """
    with storage_errors(directory):
        (directory / RECORDS_NAME).mkdir(parents=True, exist_ok=True)
        for leftover in (*directory.glob(TEMPORARY), *(directory / RECORDS_NAME).glob(TEMPORARY)):
            leftover.unlink(missing_ok=True)
    finished = {shard.file: record for shard in shards if (record := good_record(directory, shard))}
    pending = [shard for shard in shards if shard.file not in finished]
    if pending and before is not None:
        before()
    tally = _Tally(max_rejects)
    with progress(title, len(shards)) as advance:
        advance(len(finished), "already done" if finished else "")
        for record in finished.values():
            tally.add(record)
        if pending:
            options: dict[str, Any] = {"num_cpus": num_cpus, "max_retries": TASK_RETRIES}
            if memory_bytes is not None:
                options["memory"] = memory_bytes
            log = ShardLog(directory, title, [shard.size_bytes for shard in pending])
            shown = ""
            for shard, made in _run(function, pending, directory, options, max_in_flight):
                if made is None:
                    advance(0, read_status(directory, shard.file) or shown)
                    continue
                finished[shard.file] = made.record
                rows = made.record.entry.rows or 0
                log.add(shard.file, shard.size_bytes, made.text_bytes, rows, made.effort)
                tally.add(made.record)
                shown = ", ".join(filter(None, (str(tally), str(log))))
                advance(1, shown)
    return [finished[shard.file] for shard in shards]


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
    records = [_read_record(path) for path in sorted((directory / RECORDS_NAME).glob("*.json"))]
    return [record for record in records if record is not None]


def describe_changes(manifest: Manifest, config: Mapping[str, Any], inputs: Sequence[InputEntry]) -> str:
    """What differs between a committed artefact and what is asked for now, for people."""
    changed = list(_differences("", manifest.config, orjson.loads(orjson.dumps(dict(config)))))
    if (more := len(changed) - SHOWN_CHANGES) > 0:
        changed[SHOWN_CHANGES:] = [f"{more} more settings differ"]
    before = {entry.fingerprint for entry in manifest.inputs}
    now = {entry.fingerprint for entry in inputs}
    new = [entry.kind for entry in inputs if entry.fingerprint not in before]
    gone = [entry.kind for entry in manifest.inputs if entry.fingerprint not in now]
    if new or gone:
        changed.append(f"{len(new)} inputs are new and {len(gone)} are gone")
    if new and gone and set(new) != set(gone):
        changed.append(f"made from {', '.join(sorted(set(new)))} instead of {', '.join(sorted(set(gone)))}")
    return "; ".join(changed) or "the split of the work differs"


def _differences(key: str, old: Any, new: Any) -> Iterator[str]:
    """A line for every setting that differs, with its dotted key."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            yield from _differences(f"{key}.{name}" if key else str(name), old.get(name), new.get(name))
    elif old != new:
        yield f"{key} was {old!r}, is {new!r}"


def _run(
    function: ShardFunction,
    pending: Sequence[Shard],
    directory: Path,
    options: dict[str, Any],
    max_in_flight: int | None,
) -> Iterator[tuple[Shard, _Made | None]]:
    """Yield what tasks return as they finish, with at most `max_in_flight` tasks submitted; now and then, while none
    does, a shard in work with None."""
    import ray

    from cluster.runtime import tasks_in_flight

    remote = ray.remote(**options)(_make_shard)
    shared = ray.put(function)
    window = max_in_flight or tasks_in_flight()
    waiting = list(reversed(pending))
    running: dict[Any, Shard] = {}
    try:
        while waiting or running:
            while waiting and len(running) < window:
                shard = waiting.pop()
                running[remote.remote(shared, shard, str(directory))] = shard
            ready, _ = ray.wait(list(running), num_returns=1, timeout=STATUS_INTERVAL_S)
            if not ready:
                yield next(iter(running.values())), None
                continue
            shard = running.pop(ready[0])
            yield shard, _result_of(ready[0], shard)
    finally:
        for reference in running:
            ray.cancel(reference)


def _result_of(reference: Any, shard: Shard) -> _Made:
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, ClozeError):
            raise error.cause from None
        raise
    except (WorkerCrashedError, OutOfMemoryError, NodeDiedError) as error:
        raise WorkersLostError(
            f"The task for {shard.file} died {TASK_RETRIES + 1} times: {error}",
            kept="all finished shards",
            next_step="run the same command again; if it dies at the same shard, give tasks more memory",
        ) from error


@dataclass(frozen=True, slots=True)
class _Made:
    """What the task of a shard sends back; the shard itself stays on disk."""

    record: ShardRecord
    text_bytes: int
    effort: Effort


def _make_shard(function: ShardFunction, shard: Shard, directory: str) -> _Made:
    """Body of the Ray task: temporary name, hash, rename, record."""
    target = Path(directory) / shard.file
    # Ray may start a task again elsewhere while a cut-off node still works on it.
    temporary = target.with_name(f".{shard.file}.{uuid4().hex[:12]}.tmp")
    with storage_errors(target), measure_effort() as effort:
        try:
            result = function(shard.split, temporary)
            digest, size_bytes = hash_file(temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
            remove_status(temporary)
        record = ShardRecord(
            identity=shard.identity,
            entry=FileEntry(
                path=shard.file,
                size_bytes=size_bytes,
                xxh3_128=digest,
                rows=result.rows,
                tokens=result.tokens,
            ),
            stats=result.stats,
            rejects=result.rejects,
            notes=result.notes,
        )
        write_record(Path(directory), record)
        num_bytes = shard.size_bytes if result.text_bytes is None else result.text_bytes
        return _Made(record, num_bytes, effort())


def good_record(directory: Path, shard: Shard) -> ShardRecord | None:
    """The shard's record when its file is there with the recorded bytes, else None."""
    record = _read_record(record_path(directory, shard.file))
    if record is None or record.identity != shard.identity:
        return None
    try:
        digest, _ = hash_file(directory / shard.file)
    except OSError:
        return None
    return record if digest == record.entry.xxh3_128 else None


def _read_record(path: Path) -> ShardRecord | None:
    try:
        return ShardRecord.model_validate(unseal(orjson.loads(path.read_bytes())))
    except (OSError, ValueError):
        return None


def find_record_damage(directory: Path, manifest: Manifest) -> list[Damage]:
    """The records of a committed artefact's shards that are lost, or are not what was written; none where it was not
    made of shards. Without its record a shard cannot say what was rejected in it."""
    if not (directory / RECORDS_NAME).is_dir():
        return []
    shards = [entry.path for entry in manifest.files if entry.rows is not None]
    paths = {shard: record_path(directory, shard) for shard in shards}
    return [
        Damage(
            path.relative_to(directory).as_posix(),
            "its checksum does not fit" if path.exists() else "is missing",
        )
        for shard, path in paths.items()
        if (record := _read_record(path)) is None or record.entry.path != shard
    ]


def write_record(directory: Path, record: ShardRecord) -> None:
    """Note durably that a shard lies finished in `directory`."""
    sealed = seal(record.model_dump(mode="json"))
    write_durably(record_path(directory, record.entry.path), orjson.dumps(sealed))


def was_made(directory: Path, shard: Shard) -> bool:
    """Whether a record says that the shard was made here, whatever became of its file since."""
    record = _read_record(record_path(directory, shard.file))
    return record is not None and record.identity == shard.identity


def record_path(directory: Path, file: str) -> Path:
    """Where the record of a shard lies."""
    return directory / RECORDS_NAME / f"{file}.json"


class _Tally:
    """Counts over finished shards, for people and for `max_rejects`."""

    def __init__(self, max_rejects: int) -> None:
        self._max_rejects = max_rejects
        self._rejects: list[Reject] = []
        self._counts: Counter[str] = Counter()

    def add(self, record: ShardRecord) -> None:
        """Count one more shard.

        Raises:
            TooManyRejectsError: there are more rejects than tolerated.
        """
        self._counts.update(sum_stats([record]))
        self._rejects.extend(record.rejects)
        if len(self._rejects) > self._max_rejects:
            shown = "\n".join(f"  {reject}" for reject in self._rejects[:10])
            raise TooManyRejectsError(
                f"{len(self._rejects)} unreadable inputs, but max_rejects is {self._max_rejects}:\n{shown}",
                kept="all finished shards",
                next_step="replace the damaged sources, or raise max_rejects, and run the same command again",
            )

    def __str__(self) -> str:
        return ", ".join(
            f"{self._counts[name]:,} {name}" for name in ("rows", "tokens") if self._counts[name] > 1
        )
