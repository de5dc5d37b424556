"""One save on one rank: its parts are written and marked; rank 0 puts the parts of all together."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import orjson
import torch

from cluster.artefacts.errors import StorageError
from cluster.artefacts.manifest import FileEntry
from cluster.artefacts.storage import storage_errors
from pipeline.checkpoints.checkpoint import TrainerState
from pipeline.checkpoints.snapshot import Snapshot
from pipeline.checkpoints.staging import PARTS_DIRECTORY, Staging
from pipeline.checkpoints.weights_file import (
    Piece,
    array_piece,
    read_pieces,
    write_pieces,
    write_weights,
)
from pipeline.engine.interface import TrainingEngine

_INVISIBLE_AFTER_S = 120.0
"""Seconds after all ranks have written by which rank 0 must see their marks; a shared file system may be slow."""


@dataclass(slots=True)
class Job:
    """One save on one rank."""

    state: TrainerState
    staging: Staging
    snapshot: Snapshot
    began: float
    files: dict[str, Any] = field(default_factory=dict)
    """Captured contents, by path in the checkpoint."""
    weights: dict[str, list[Piece]] = field(default_factory=dict)
    """This rank's pieces of MODEL_FILE and EMA_FILE."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of every tensor of the network, in its order."""
    error: Exception | None = None
    """What went wrong on this rank."""
    entries: list[FileEntry] = field(default_factory=list)
    """Files that this rank has written."""
    copied: threading.Event = field(default_factory=threading.Event)
    """The state of training may change again."""
    written: threading.Event = field(default_factory=threading.Event)
    """This rank has done its part, or failed to."""
    settled: threading.Event = field(default_factory=threading.Event)
    """All ranks have; `somebody_failed` is known."""
    somebody_failed: bool = False
    waited_s: float = 0.0
    """Seconds that the training loop waited."""


def copy_state(job: Job) -> None:
    """Copy the tensors that were collected. Never raises: see `Job.error`."""
    try:
        if job.error is None:
            job.snapshot.copy()
    except Exception as error:
        job.error = error
    finally:
        job.copied.set()


def write_parts(job: Job, number: int) -> None:
    """Write the parts of rank `number`, and mark them as done. Never raises: see `Job.error`."""
    began_files: list[str] = []
    try:
        if job.error is not None:
            raise job.error
        for path, contents in job.files.items():
            began_files.append(path)
            with job.staging.create(path) as stream:
                torch.save(contents, cast(Any, stream))
            job.entries.append(stream.entry(path))
        if number != 0:
            for file, pieces in job.weights.items():
                began_files.append(_share(file, number))
                with job.staging.create(_share(file, number)) as stream:
                    write_pieces(stream, pieces)
            entries = [entry.model_dump(mode="json") for entry in job.entries]
            job.staging.mark(_done(number), orjson.dumps(entries))
    except Exception as error:
        job.error = error
        with suppress(Exception):
            job.staging.remove(began_files)
        if number != 0:
            told = explained(error, job.state.step)
            with suppress(Exception):
                job.staging.mark(_failed(number), orjson.dumps([told.problem, told.next_step]))
    finally:
        if number != 0:
            job.snapshot.release()
        job.files.clear()
        job.written.set()


def parts_of_all(job: Job, world_size: int, place: str) -> list[FileEntry]:
    """The files of all ranks, once every one has written or failed.

    Raises:
        StorageError: one has failed, or its marks do not appear here.
    """
    missing = set(range(1, world_size))
    entries, problems, deadline = list(job.entries), [], None
    while missing:
        marks = job.staging.marks()
        for number in sorted(missing):
            if data := marks.get(_done(number)):
                entries += [FileEntry.model_validate(entry) for entry in orjson.loads(data)]
                missing.discard(number)
            elif data := marks.get(_failed(number)):
                problems.append(orjson.loads(data))
                missing.discard(number)
        if not missing:
            break
        if job.settled.is_set():
            if job.somebody_failed:
                break
            deadline = deadline or time.monotonic() + _INVISIBLE_AFTER_S
            if time.monotonic() > deadline:
                raise StorageError(
                    f"The parts of ranks {sorted(missing)} do not appear at"
                    f" {place}, though they were written.",
                    next_step="keep checkpoints where all machines see the same files (checkpoint.directory)",
                )
        time.sleep(job.staging.poll_s)
    if problems:
        problem, next_step = problems[0]
        raise StorageError(problem, kept="the earlier checkpoints", next_step=next_step)
    if missing and job.error is None:
        raise StorageError(
            f"Ranks {sorted(missing)} could not write to {place}.",
            kept="the earlier checkpoints",
            next_step="look at the disk and the permissions of the machines of these ranks (events.jsonl)",
        )
    return entries


def assemble(job: Job, file: str, world_size: int) -> FileEntry:
    """Write MODEL_FILE or EMA_FILE from the shares of all ranks, a piece at a time."""
    with ExitStack() as opened:
        shares = (job.staging.open(_share(file, number)) for number in range(1, world_size))
        streams = [opened.enter_context(share) for share in shares]
        pieces = [*job.weights[file], *(piece for stream in streams for piece in read_pieces(stream))]
        with job.staging.create(file) as target:
            write_weights(target, job.shapes, pieces)
    return target.entry(file)


def own_slices(
    engine: TrainingEngine, kind: Literal["weights", "average"], snapshot: Snapshot
) -> list[Piece]:
    """This rank's share of the weights or of their average; `snapshot` copies the values."""
    return [
        array_piece(one.name, one.start, snapshot.tensor(one.values).detach().numpy())
        for one in engine.slices(kind)
        if one.values.numel()
    ]


def explained(error: Exception, step: int) -> StorageError:
    """The same as a StorageError, whatever it was: a save never ends training by itself."""
    if isinstance(error, StorageError):
        return error
    try:
        with storage_errors(Path(f"the checkpoint of step {step}")):
            raise error
    except StorageError as explained:
        return explained
    except Exception:
        return StorageError(
            f"The checkpoint of step {step} could not be saved: {type(error).__name__}: {error}",
            kept="the earlier checkpoints",
        )


def _done(rank: int) -> str:
    return f"rank-{rank:05d}.done"


def _failed(rank: int) -> str:
    return f"rank-{rank:05d}.failed"


def _share(file: str, rank: int) -> str:
    return f"{PARTS_DIRECTORY}/{file}.{rank:05d}"
