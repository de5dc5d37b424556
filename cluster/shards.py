"""Artefacts made of shards: one Ray task per output shard, or per few tiny ones, resumable.

A shard is a pure function of its input and of the configuration. A task writes it under a temporary name, hashes
it, renames it and only then writes its record; so a record always describes a finished file, and a run that was killed
redoes only shards without a good record.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import ClozeError, TooManyRejectsError
from cluster.artefacts.manifest import MANIFEST_NAME, FileEntry, InputEntry, Manifest, hash_json, replaced
from cluster.artefacts.parts import TEMPORARY, PartedArtefact
from cluster.artefacts.shard_records import (
    LOG_NAME,
    SHARD_RECORDS,
    Effort,
    Reject,
    ShardLog,
    ShardRecord,
    measure_effort,
    read_status,
    remove_status,
    sum_stats,
)
from cluster.artefacts.storage import QUARANTINE_NAME, Damage, quarantine, storage_errors
from cluster.failures import TASK_RETRIES, result_of
from cluster.progress import progress
from cluster.runtime import node_cpus, require_ray, run_tasks, tasks_in_flight

TINY_BYTES = 64 * 1024
"""Shards with at most this input are tiny: a task takes several, because starting one would cost the driver more than
the work costs a worker."""
TINY_PER_TASK = 16
"""The most tiny shards of one task."""
TASKS_PER_SLOT = 4
"""Tasks that each place in flight gets at least before tiny shards share one, so that no worker is idle at the end."""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The return value of a function that has written a shard."""

    rows: int
    tokens: int | None = None
    stats: dict[str, int] = field(default_factory=dict)
    """Counts that add up over shards."""
    rejects: tuple[Reject, ...] = ()
    notes: tuple[dict[str, Any], ...] = ()
    """A few examples for people to look at, as JSON-like data, on disk only; they enter no fingerprint."""
    text_bytes: int | None = None
    """Bytes of text that were handled, for the log; None takes the shard's `size_bytes`."""


WriteShard = Callable[[Path], ShardResult]
"""Writes a shard to the given path. Runs in a Ray task: a function with its arguments (`functools.partial`), all
picklable."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One unit of work: an output file, and how it is made."""

    file: str
    """Name of the output file in the artefact's directory."""
    make: Callable[[], WriteShard]
    """Gives what writes the file. Called in the driver, and only if the shard has to be made: arguments may take work
    or memory."""
    identity: str
    """Hash of everything that determines the output: input bytes, which part of them, settings. No paths."""
    size_bytes: int = 0
    """Bytes of input, for the estimate of the time left, and to find tiny shards, which share tasks; 0 is unknown."""


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


def map_shards(
    shards: Sequence[Shard],
    directory: Path,
    *,
    title: str,
    max_rejects: int = 0,
    num_cpus: float | None = 1.0,
    before: Callable[[], object] | None = None,
) -> list[ShardRecord]:
    """Make every shard in `directory` that does not exist yet and return all records, in the order of `shards`, without
    their notes. Tiny shards, where there are many, share Ray tasks.

    Needs a Ray cluster whose nodes all see `directory`, unless all shards are there.

    Args:
        max_rejects: number of unreadable inputs that are tolerated, over all shards.
        num_cpus: CPUs of one task; None for all of the node that has the most.
        before: called once in this process, before the first task, if any shard has to be made; it makes temporary
            inputs of the shards.

    Raises:
        TooManyRejectsError: finished shards are kept.
        WorkersLostError: a task's process died TASK_RETRIES times over.
        ClozeError: a task raised it.
    """
    with storage_errors(directory):
        SHARD_RECORDS.open(directory)
    finished = SHARD_RECORDS.finished(directory, {shard.file: shard.identity for shard in shards})
    pending = [shard for shard in shards if shard.file not in finished]
    if pending:
        require_ray()
        if before is not None:
            before()
    counts, rejects = Counter[str](), list[Reject]()

    def count(record: ShardRecord) -> None:
        counts.update(sum_stats([record]))
        rejects.extend(record.rejects)
        if len(rejects) > max_rejects:
            shown = "\n".join(f"  {reject}" for reject in rejects[:10])
            raise TooManyRejectsError(
                f"{len(rejects)} unreadable inputs, but max_rejects is {max_rejects}:\n{shown}",
                kept="all finished shards",
                next_step="replace the damaged sources, or raise max_rejects, and run the same command again",
            )

    with progress(title, len(shards)) as advance:
        advance(len(finished), "already done" if finished else "")
        for record in finished.values():
            count(record)
        if pending:
            sizes = [shard.size_bytes for shard in pending]
            log = ShardLog(directory, title, sizes, done=len(finished), rejects=len(rejects))
            shown = ""
            for shard, made in _run(pending, directory, num_cpus):
                if made is None:
                    advance(0, read_status(directory, shard.file) or shown)
                    continue
                record, text_bytes, effort = made
                # Unpickled records no longer share strings; keep the slim copy.
                finished[shard.file] = record.slim()
                rows, size_bytes = record.entry.rows or 0, shard.size_bytes
                text_bytes = size_bytes if text_bytes is None else text_bytes
                log.add(shard.file, size_bytes, text_bytes, rows, effort, rejects=len(record.rejects))
                count(record)
                totals = [f"{counts[name]:,} {name}" for name in ("rows", "tokens") if counts[name] > 1]
                shown = ", ".join(filter(None, (*totals, str(log))))
                advance(1, shown)
    return [finished[shard.file] for shard in shards]


def run_in_task(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)` in a Ray task, which takes the memory that the driver is to be spared.

    Raises:
        WorkersLostError: the task's process died TASK_RETRIES times over.
        ClozeError: the function raised it.
    """
    require_ray()
    import ray

    remote = ray.remote(num_cpus=1, max_retries=TASK_RETRIES)(function)
    return result_of(remote.remote(*arguments), f"The task for {function.__name__}")


def _run(
    pending: Sequence[Shard], directory: Path, num_cpus: float | None
) -> Iterator[tuple[Shard, _Made | None]]:
    """Run the tasks and yield every shard with its result; every STATUS_INTERVAL_S without a result, yield a running
    shard with None."""

    def arguments(task: Sequence[Shard]) -> tuple[Any, ...]:
        return [(shard.make(), shard.file, shard.identity) for shard in task], str(directory)

    def who(task: Sequence[Shard]) -> str:
        return f"The task for {task[0].file}" + (f" to {task[-1].file}" if len(task) > 1 else "")

    tasks = share_tasks(pending, tasks_in_flight())
    num_cpus = node_cpus() if num_cpus is None else num_cpus
    for task, result in run_tasks(make_shards, tasks, arguments, who, num_cpus=num_cpus):
        if result is None:
            yield task[0], None
            continue
        made, error = result
        yield from zip(task, made, strict=False)
        if error is not None:
            raise error


def share_tasks(pending: Sequence[Shard], window: int) -> list[Sequence[Shard]]:
    """The shards of every task, of which `window` are in flight: one, or neighbours that are tiny."""
    most = max(1, min(TINY_PER_TASK, len(pending) // (TASKS_PER_SLOT * window)))
    tasks: list[Sequence[Shard]] = []
    for tiny, neighbours in groupby(pending, key=lambda shard: 0 < shard.size_bytes <= TINY_BYTES):
        own, size = list(neighbours), most if tiny else 1
        tasks.extend(own[start : start + size] for start in range(0, len(own), size))
    return tasks


_Made = tuple[ShardRecord, int | None, Effort]
"""The return value of a shard's Ray task: its record, the bytes of text, and the effort. The shard stays on disk."""


def make_shards(
    shards: Sequence[tuple[WriteShard, str, str]], directory: str
) -> tuple[list[_Made], ClozeError | None]:
    """Body of the Ray task: the shards that were made, and the error that ended it.

    Args:
        shards: what writes each, its file name and its identity.
    """
    made: list[_Made] = []
    for shard in shards:
        try:
            made.append(_make_shard(*shard, directory))
        except ClozeError as error:
            return made, error
    return made, None


def _make_shard(write: WriteShard, name: str, identity: str, directory: str) -> _Made:
    """Make one shard: temporary name, hash, rename, record."""
    target = Path(directory) / name
    with storage_errors(target), measure_effort() as effort:
        with replaced(target, durable=False) as temporary:
            try:
                result = write(temporary)
                entry = FileEntry.of(temporary, name, rows=result.rows, tokens=result.tokens)
            finally:
                remove_status(temporary)
        record = ShardRecord(
            identity=identity,
            entry=entry,
            stats=result.stats,
            rejects=result.rejects,
            notes=result.notes,
        )
        SHARD_RECORDS.write(Path(directory), record)
        return record.slim(), result.text_bytes, effort()
