"""Saving during training: the state is copied between two updates, and a thread writes the copy.

Every rank writes its own files; rank 0 waits for all, asks them for their slices of the weights and publishes. The
threads have a process group of their own, because the other one belongs to training.

A save that fails, on whichever rank, leaves no files and is reported; the checkpoints before it stay.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from cluster.artefacts.errors import ClozeError, StorageError
from cluster.artefacts.manifest import FileEntry, InputEntry
from cluster.collectives import host_group
from cluster.group import Rank
from models.config import NetworkConfig
from pipeline.checkpoint.checkpoint import (
    DEEPSPEED_DIRECTORY,
    EMA_FILE,
    MODEL_FILE,
    TrainerState,
    description,
    manifest_of,
)
from pipeline.checkpoint.rank_save import (
    Extent,
    RankSave,
    Snapshot,
    Written,
    explained,
    own_slices,
    write_rank_files,
    write_weights,
)
from pipeline.checkpoint.store import CheckpointStore, best_step

if TYPE_CHECKING:
    from pipeline.engine.deepspeed.engine import Engine

_NO_FILE = -1
"""Number that rank 0 asks for when it has all slices."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A save that became a checkpoint."""

    step: int
    place: str
    """Path or URI."""
    fingerprint: str
    held_out: Mapping[str, float]
    """By name, the metrics of the newest evaluation."""
    best: bool
    """Whether it is the best of those there are."""
    kept: tuple[int, ...]
    """Steps of the checkpoints that were there after retention did its work, this one among them."""
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


@dataclass
class CheckpointSaver:
    """Saves the checkpoints of one attempt. All ranks make one, and call `save` and `wait` at the same steps.

    Raises:
        StorageError: the store cannot be read.
    """

    store: CheckpointStore
    rank: Rank
    model: NetworkConfig
    tokenizer_json: str
    inputs: Sequence[InputEntry]
    """What the checkpoints are made from, for their manifests."""
    ema: bool
    """Whether the run keeps an average of its weights."""
    retain: Callable[[], object]
    """Called on rank 0 after every commit, to delete older checkpoints."""
    asynchronous: bool = True
    while_waiting: Callable[[], object] = lambda: None
    """Called again and again while `save` or `wait` waits, for a heartbeat."""
    before_publishing: Callable[[], object] = lambda: None
    """Called on rank 0 just before a checkpoint appears; raises where it must not."""

    def __post_init__(self) -> None:
        self._snapshot = Snapshot()
        self._thread: threading.Thread | None = None
        self._outcomes: deque[Committed | Failed] = deque()
        self._count = 0
        # What earlier attempts left never counts.
        attempt = [uuid.uuid4().hex[:8]]
        self._group: Any = None
        if self.rank.world_size > 1:
            dist.broadcast_object_list(attempt, src=0)
            self._group = host_group()
        self.attempt: str = attempt[0]
        self._known: set[int] = set()
        self._untidy = False
        """Whether something that was to be deleted may still be there."""
        if self.rank.rank == 0:
            self.store.clean()
            self._known = set(self.store.steps())

    def save(self, engine: Engine, state: TrainerState) -> None:
        """Copy the state of training and have it written. All ranks must call it, between two updates.

        Returns when the state is copied, or without `asynchronous` when all is written. Where the save before is still
        being written, waits for that first: there is memory for one copy. Never raises for what a store refuses: see
        `finished`.
        """
        self.wait()
        began = time.perf_counter()
        save = self._collect(engine, state, began)
        save.waited_s = time.perf_counter() - began
        if self.asynchronous:
            self._thread = threading.Thread(target=self._write, args=(save,), name="checkpoint", daemon=True)
            self._thread.start()
        else:
            self._write(save)

    def finished(self) -> list[Committed | Failed]:
        """Outcomes of saves since the last call, oldest first; on other ranks than 0 nothing."""
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]

    def wait(self) -> None:
        """Return when nothing is being written any more."""
        while self._thread is not None:
            self._thread.join(0.1)
            if self._thread.is_alive():
                self.while_waiting()
            else:
                self._thread = None

    def _collect(self, engine: Engine, state: TrainerState, began: float) -> RankSave:
        self._count += 1
        step, snapshot = state.step, self._snapshot
        snapshot.reset()
        staging = self.store.staging(step, f"{self.attempt}-{self._count:04d}")
        save = RankSave(state, staging, began)
        if step in self._known:
            # Before the collective below, because the other ranks begin to write after it.
            try:
                self.store.make_room(step)
            except ClozeError as error:
                save.error = error
        files, failure = engine.capture(snapshot.tree)
        save.files = {f"{DEEPSPEED_DIRECTORY}/{name}": contents for name, contents in files.items()}
        try:
            save.weights[MODEL_FILE] = own_slices(engine, "weights", snapshot)
            if self.ema:
                save.weights[EMA_FILE] = own_slices(engine, "average", snapshot)
            save.shapes = engine.shapes()
        except Exception as error:
            # The other ranks continue with the save, so this one must as well.
            save.error = error
        save.error = save.error or failure
        return save

    def _write(self, save: RankSave) -> None:
        """Write the files of this rank; rank 0 then joins the weights and publishes, or gives up. Never raises."""
        own = write_rank_files(save)
        if self.rank.rank != 0:
            with suppress(Exception):  # Rank 0 has ended.
                dist.gather_object(own, dst=0, group=self._group)
                self._send_slices(save)
            return
        try:
            ranks = [own]
            if self._group is not None:
                ranks *= self.rank.world_size
                dist.gather_object(own, ranks, dst=0, group=self._group)
            try:
                if failures := [rank.error for rank in ranks if rank.error is not None]:
                    raise failures[0]
                entries = [entry for rank in ranks for entry in rank.entries]
                entries += [self._join(save, file, ranks) for file in save.weights]
            finally:
                for rank in range(1, self.rank.world_size):
                    dist.send(torch.tensor([_NO_FILE, 0]), dst=rank, group=self._group)
            self._outcomes.append(self._publish(save, entries))
        except Exception as error:
            with suppress(Exception):
                save.staging.discard()
            self._outcomes.append(Failed(save.state.step, explained(error, save.state.step)))

    def _send_slices(self, save: RankSave) -> None:
        """Send rank 0 each slice that it asks for by the numbers of its file and of the slice, until it has all."""
        slices = [*save.weights.values()]
        wanted = torch.zeros(2, dtype=torch.int64)
        while True:
            dist.recv(wanted, src=0, group=self._group)
            file, number = wanted.tolist()
            if file == _NO_FILE:
                return
            dist.send(slices[file][number].values, dst=0, group=self._group)

    def _join(self, save: RankSave, name: str, ranks: Sequence[Written]) -> FileEntry:
        """Write MODEL_FILE or EMA_FILE from the slices of all ranks."""
        file = [*save.weights].index(name)

        def read(rank: int, number: int, extent: Extent) -> np.ndarray:
            if rank == 0:
                return save.weights[name][number].values.numpy()
            # First, because a rank that was asked waits until its slice is taken.
            values = torch.empty(extent.count)
            dist.send(torch.tensor([file, number]), dst=rank, group=self._group)
            dist.recv(values, src=rank, group=self._group)
            return values.numpy()

        slices = [
            (extent, partial(read, rank, number, extent))
            for rank, written in enumerate(ranks)
            for number, extent in enumerate(written.extents[name])
        ]
        with save.staging.create(name) as stream:
            write_weights(stream, save.shapes, slices)
        return stream.entry(name)

    def _publish(self, save: RankSave, entries: list[FileEntry]) -> Committed:
        step, staging, state = save.state.step, save.staging, save.state
        for name, data in description(state, self.model, self.tokenizer_json).items():
            with staging.create(name) as stream:
                stream.write(data)
            entries.append(stream.entry(name))
        self.before_publishing()
        manifest = staging.publish(manifest_of(state, entries, self.inputs))
        seconds = time.perf_counter() - save.began
        self._known.add(step)
        best, warning = False, ""
        # The checkpoint is there, whatever becomes of older ones.
        try:
            if self._untidy:
                self.store.clean()
            self._untidy = True
            self.retain()
            self._untidy = False
        except Exception as error:
            warning = explained(error, step).problem
        with suppress(Exception):
            self._known = set(self.store.steps()) | {step}
            best = best_step(self.store) == step
        return Committed(
            step=step,
            place=self.store.place(step),
            fingerprint=manifest.fingerprint,
            held_out=state.held_out,
            best=best,
            kept=tuple(sorted(self._known)),
            waited_s=save.waited_s,
            seconds=seconds,
            size_bytes=sum(entry.size_bytes for entry in manifest.files),
            warning=warning,
        )
