"""Saving while training goes on: the loop waits for a copy in memory, a thread does the rest.

Every rank writes its own parts and marks them as done; rank 0 waits for the marks of all, puts the weights together and
publishes. The threads talk to each other only through the store, never through the process group, which belongs to
training.

A save that fails, on whichever rank, leaves nothing behind and is reported; the checkpoints before it stay.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson
import torch
import torch.distributed as dist

from cluster.errors import ClozeError, StorageError
from cluster.manifest import FileEntry, InputEntry
from cluster.storage import storage_errors
from cluster.train_group import Rank
from models.config import NetworkConfig
from pipeline.pretrain.checkpoint import (
    DEEPSPEED_DIRECTORY,
    EMA_FILE,
    MODEL_FILE,
    TrainerState,
    description,
    manifest_config,
    manifest_stats,
)
from pipeline.pretrain.checkpoint_store import PARTS_DIRECTORY, CheckpointStore, Staging
from pipeline.pretrain.fragments import own_fragments
from pipeline.pretrain.kept_checkpoints import Retention, apply_retention, best_step
from pipeline.pretrain.snapshot import HostBuffers, Snapshot, capture
from pipeline.pretrain.weights_file import Piece, array_piece, read_pieces, write_pieces, write_weights

if TYPE_CHECKING:
    from pipeline.pretrain.engine import TrainingEngine

_NICENESS = 19
_INVISIBLE_AFTER_S = 120.0
"""Seconds after all ranks have written by which rank 0 must see their marks; a shared file system may be slow."""
_NOWHERE = Path("nowhere")
"""Names of captured files are relative to it; nothing is written there."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A save that became a checkpoint."""

    step: int
    place: str
    """Path or URI."""
    fingerprint: str
    held_out_loss: float | None
    best: bool
    """Whether it is the best of those there are."""
    deleted: tuple[int, ...]
    """Steps whose checkpoints retention deleted then."""
    waited_s: float
    """Seconds that the training loop waited."""
    seconds: float
    """Seconds from the beginning to the commit."""
    size_bytes: int
    warning: str = ""
    """Why retention could not do its work; the checkpoint is good all the same."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A save that came to nothing."""

    step: int
    error: StorageError


@dataclass(frozen=True, slots=True)
class Contents:
    """What every checkpoint of an attempt has in common."""

    model: NetworkConfig
    tokenizer_json: str
    inputs: Sequence[InputEntry]
    ema: bool
    """Whether the run keeps an average of its weights."""


@dataclass(slots=True)
class _Job:
    """One save on one rank."""

    state: TrainerState
    staging: Staging
    snapshot: Snapshot
    scratch: Path
    began: float
    files: dict[str, Any] = field(default_factory=dict)
    """Captured contents, by path in the checkpoint."""
    weights: dict[str, list[Piece]] = field(default_factory=dict)
    """This rank's pieces of MODEL_FILE and EMA_FILE."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of every tensor of the network, in its order."""
    error: Exception | None = None
    """What went wrong on this rank."""
    entries: list[FileEntry] = field(default_factory=list)
    """Files that this rank has written."""
    written: threading.Event = field(default_factory=threading.Event)
    """This rank has done its part, or failed to."""
    settled: threading.Event = field(default_factory=threading.Event)
    """All ranks have; `somebody_failed` is known."""
    somebody_failed: bool = False
    waited_s: float = 0.0


class CheckpointSaver:
    """Saves the checkpoints of one attempt. All ranks make one, and call `save` and `wait` at the same steps."""

    def __init__(
        self,
        store: CheckpointStore,
        rank: Rank,
        contents: Contents,
        retention: Retention,
        *,
        asynchronous: bool = True,
        scratch: Path | None = None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
            scratch: directory on this machine for what DeepSpeed copies from NVMe while the loop waits; needed
                where the optimizer is offloaded there, as `zero.offload_optimizer.path`.
            while_waiting: called again and again while `save` or `wait` waits, for a heartbeat.

        Raises:
            StorageError: the store cannot be read.
        """
        self._store, self._rank, self._contents, self._retention = store, rank, contents, retention
        self._asynchronous, self._scratch, self._while_waiting = asynchronous, scratch, while_waiting
        self._buffers = HostBuffers()
        self._job: _Job | None = None
        self._thread: threading.Thread | None = None
        self._outcomes: deque[Committed | Failed] = deque()
        self._count = 0
        # What a save of an earlier attempt marked must never count for one of this.
        attempt = [uuid.uuid4().hex[:8]]
        if rank.world_size > 1:
            dist.broadcast_object_list(attempt, src=0)
        self.attempt: str = attempt[0]
        self._known: set[int] = set()
        if rank.rank == 0:
            store.clean()
            self._known = set(store.steps())
        # The manifest has a hash for every file; another checksum would cost more time than writing.
        torch.serialization.set_crc32_options(False)

    def save(
        self, engine: TrainingEngine, state: TrainerState, client_state: Mapping[str, Any] | None = None
    ) -> None:
        """Copy the state of training and have it written. All ranks must call it, between two updates.

        Returns when the copy is complete, or without `asynchronous` when all is written. Where the save before is
        still being written, waits for that first: there is memory for one copy. Never raises for what a store
        refuses: see `finished`.
        """
        self.wait()
        began = time.perf_counter()
        job = self._copy(engine, state, client_state or {}, began)
        self._job = job
        job.waited_s = time.perf_counter() - began
        if self._asynchronous:
            self._thread = threading.Thread(target=self._run, args=(job,), name="checkpoint", daemon=True)
            self._thread.start()
        else:
            self._write(job)
            self._settle(job)
            self._conclude(job)
            self._job = None

    def finished(self) -> list[Committed | Failed]:
        """What became of saves since the last call, oldest first; on other ranks than 0 nothing."""
        outcomes = []
        while self._outcomes:
            outcomes.append(self._outcomes.popleft())
        return outcomes

    def wait(self) -> None:
        """Return when nothing is being written any more. All ranks must call it at the same step."""
        job, thread = self._job, self._thread
        if job is None:
            return
        if thread is not None:
            self._await(job.written.is_set)
            self._settle(job)
            self._await(lambda: not thread.is_alive())
        self._job = self._thread = None

    def _copy(
        self, engine: TrainingEngine, state: TrainerState, client_state: Mapping[str, Any], began: float
    ) -> _Job:
        self._count += 1
        step, snapshot = state.step, Snapshot(self._buffers)
        staging = self._store.staging(step, f"{self.attempt}-{self._count:04d}")
        scratch = _NOWHERE
        if self._scratch is not None:
            scratch = Path(tempfile.mkdtemp(prefix="cloze-save-", dir=self._scratch))
        job = _Job(state, staging, snapshot, scratch, began)
        if step in self._known:
            # Before the collective below, behind which the other ranks begin to write.
            try:
                self._store.make_room(step)
            except ClozeError as error:
                job.error = error
        captured = capture(engine.deepspeed, snapshot, scratch, DEEPSPEED_DIRECTORY, client_state)
        job.files = captured.files
        try:
            keys = {MODEL_FILE: "fp32"} | ({EMA_FILE: "ema"} if self._contents.ema else {})
            job.weights = {file: _pieces(engine, key, snapshot) for file, key in keys.items()}
            if self._rank.rank == 0:
                job.shapes = _shapes(engine.deepspeed.module)
            snapshot.wait()
        except Exception as error:
            # The other ranks have their copies: this one must go on, too.
            job.error = error
        job.error = job.error or captured.error
        return job

    def _run(self, job: _Job) -> None:
        """The thread's work."""
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        self._write(job)
        self._conclude(job)

    def _write(self, job: _Job) -> None:
        """Write this rank's parts, and mark them as done."""
        number = self._rank.rank
        began_files: list[str] = []
        try:
            if job.error is not None:
                raise job.error
            for path, contents in job.files.items():
                began_files.append(path)
                with job.staging.create(path) as stream:
                    torch.save(contents, cast(Any, stream))
                job.entries.append(stream.entry(path))
            for path, file in _left_behind(job.scratch):
                began_files.append(path)
                with job.staging.create(path) as stream, file.open("rb") as copied:
                    shutil.copyfileobj(copied, stream)
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
                with suppress(Exception):
                    job.staging.mark(_failed(number), _explained(error, job.state.step).problem.encode())
        finally:
            if job.scratch != _NOWHERE:
                shutil.rmtree(job.scratch, ignore_errors=True)
            if number != 0:
                job.snapshot.release()
            job.files.clear()
            job.written.set()

    def _settle(self, job: _Job) -> None:
        """Tell rank 0 whether a rank failed that could not even write that down. All ranks are here."""
        if self._rank.world_size > 1:
            failed = torch.tensor([float(job.error is not None)], device=_device())
            dist.all_reduce(failed, op=dist.ReduceOp.MAX)
            job.somebody_failed = bool(failed.item())
        job.settled.set()

    def _conclude(self, job: _Job) -> None:
        """Rank 0: wait for the others, then publish or give up."""
        if self._rank.rank != 0:
            return
        try:
            entries = self._others(job)
            if job.error is not None:
                raise job.error
            self._outcomes.append(self._publish(job, entries))
        except Exception as error:
            with suppress(Exception):
                job.staging.discard()
            self._outcomes.append(Failed(job.state.step, _explained(error, job.state.step)))
        finally:
            job.snapshot.release()

    def _others(self, job: _Job) -> list[FileEntry]:
        """The files of all ranks, once every one has written or failed.

        Raises:
            StorageError: one has failed, or its marks do not appear here.
        """
        missing = set(range(1, self._rank.world_size))
        entries, problems, deadline = list(job.entries), [], None
        while missing:
            marks = job.staging.marks()
            for number in sorted(missing):
                if data := marks.get(_done(number)):
                    entries += [FileEntry.model_validate(entry) for entry in orjson.loads(data)]
                    missing.discard(number)
                elif data := marks.get(_failed(number)):
                    problems.append(data.decode())
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
                        f" {self._store.place(job.state.step)}, though they were written.",
                        next_step="keep checkpoints where all machines see the same files (checkpoint.directory)",
                    )
            time.sleep(job.staging.poll_s)
        if problems:
            raise StorageError(problems[0], kept="the earlier checkpoints")
        if missing and job.error is None:
            raise StorageError(
                f"Ranks {sorted(missing)} could not write to {self._store.place(job.state.step)}.",
                kept="the earlier checkpoints",
                next_step="look at the disk and the permissions of the machines of these ranks (events.jsonl)",
            )
        return entries

    def _publish(self, job: _Job, entries: list[FileEntry]) -> Committed:
        step, staging, state = job.state.step, job.staging, job.state
        for name, data in description(state, self._contents.model, self._contents.tokenizer_json).items():
            with staging.create(name) as stream:
                stream.write(data)
            entries.append(stream.entry(name))
        for file in job.weights:
            entries.append(self._assemble(job, file))
        manifest = staging.publish(
            entries, manifest_config(state), self._contents.inputs, manifest_stats(state)
        )
        seconds = time.perf_counter() - job.began
        self._known.add(step)
        deleted, warning = [], ""
        try:
            deleted = apply_retention(self._store, self._retention)
            self._known.difference_update(deleted)
        except ClozeError as error:
            warning = error.problem
        return Committed(
            step=step,
            place=self._store.place(step),
            fingerprint=manifest.fingerprint,
            held_out_loss=state.held_out_loss,
            best=best_step(self._store) == step,
            deleted=tuple(deleted),
            waited_s=job.waited_s,
            seconds=seconds,
            size_bytes=sum(entry.size_bytes for entry in manifest.files),
            warning=warning,
        )

    def _assemble(self, job: _Job, file: str) -> FileEntry:
        """Write MODEL_FILE or EMA_FILE from the shares of all ranks, a piece at a time."""
        opened = [job.staging.open(_share(file, number)) for number in range(1, self._rank.world_size)]
        streams: list[Any] = []
        try:
            streams = [one.__enter__() for one in opened]
            pieces = [*job.weights[file], *(piece for stream in streams for piece in read_pieces(stream))]
            with job.staging.create(file) as target:
                write_weights(target, job.shapes, pieces)
        finally:
            for one in opened[: len(streams)]:
                one.__exit__(None, None, None)
        return target.entry(file)

    def _await(self, condition: Callable[[], bool]) -> None:
        pause_s = 0.001
        while not condition():
            self._while_waiting()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)


def _pieces(engine: TrainingEngine, key: Any, snapshot: Snapshot) -> list[Piece]:
    return [
        array_piece(fragment.name, fragment.start, snapshot.tensor(fragment.values).detach().numpy())
        for fragment in own_fragments(engine, key)
        if fragment.values.numel()
    ]


def _shapes(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of all parameters; those of ZeRO-3 are elsewhere than in the tensors."""
    assert next(module.buffers(), None) is None, "the weights' file would lack a buffer of the network"
    return {
        name: tuple(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in module.named_parameters()
    }


def _left_behind(scratch: Path) -> Iterator[tuple[str, Path]]:
    """What DeepSpeed wrote by itself: tensors from NVMe."""
    for file in sorted(scratch.rglob("*")) if scratch != _NOWHERE else ():
        if file.is_file():
            yield file.relative_to(scratch).as_posix(), file


def _explained(error: Exception, step: int) -> StorageError:
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


def _device() -> torch.device:
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _done(rank: int) -> str:
    return f"rank-{rank:05d}.done"


def _failed(rank: int) -> str:
    return f"rank-{rank:05d}.failed"


def _share(file: str, rank: int) -> str:
    return f"{PARTS_DIRECTORY}/{file}.{rank:05d}"
