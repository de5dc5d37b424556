"""The checkpoint that an attempt, or a rollback, goes on from: chosen by rank 0 for all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.artefacts.errors import StorageError
from cluster.collectives import while_others_wait
from cluster.group import Rank
from pipeline.checkpoint.checkpoint import TrainerState, read_trainer_state, step_of
from pipeline.checkpoint.retention import newest_good
from pipeline.checkpoint.store import CheckpointStore
from pipeline.pretrain.guards.endings import require_not_lost
from pipeline.pretrain.step.collectives import from_rank_zero
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event


@dataclass(frozen=True, slots=True)
class Start:
    """A checkpoint to go on from."""

    directory: Path
    """On this machine."""
    state: TrainerState


def find_start(run: RunDirectory, store: CheckpointStore, rank: Rank) -> Start | None:
    """The newest good checkpoint, verified by rank 0; None before the first. All ranks must call it.

    Raises:
        CorruptCheckpointError: there are checkpoints and none verifies.
        StorageError: the store cannot be read.
    """
    found = while_others_wait((lambda: _newest_step(run, store)) if rank.rank == 0 else None)
    step = from_rank_zero(found)
    if step is None:
        return None
    directory = store.local(step)
    copies = store.copies and rank.local_rank == 0 and rank.rank != 0
    while_others_wait((lambda: store.fetch(step)) if copies else None)
    return Start(directory, read_trainer_state(directory))


def _newest_step(run: RunDirectory, store: CheckpointStore) -> int | None:
    try:
        path, messages = newest_good(store)
    except StorageError as error:
        raise StorageError(
            error.problem,
            kept="the run and its checkpoints",
            next_step=f"when they can be read again: cloze resume {run.typed}",
        ) from error
    require_not_lost(run, path)
    for message in messages:
        run.record_event(Event.CHECKPOINT_SET_ASIDE, message=message)
    return None if path is None else step_of(path)
