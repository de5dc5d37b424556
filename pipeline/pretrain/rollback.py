"""A run taken back to an earlier checkpoint by its operator."""

from __future__ import annotations

from contextlib import closing

from pipeline.checkpoint.retention import best_step
from pipeline.checkpoint.store import CheckpointStore
from pipeline.pretrain.guards.leftovers import end_leftovers
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.log import RunLog


def roll_back(run: RunDirectory, store: CheckpointStore, step: int) -> None:
    """Make the checkpoint of `step` the newest one of the run, whose lock the caller holds.

    Later checkpoints are renamed to `step-*.rolled-back`, and the metrics of later steps count no more: they are logged
    anew when these steps are made again. Where there is neither, nothing is done. After a kill in the middle, the same
    call does the rest.

    Raises:
        StorageError: the file system refuses, or a worker on another machine still trains.
    """
    end_leftovers(run)
    later = [one for one in store.steps() if one > step]
    with closing(RunLog(run, since=step)) as log:
        reached = log.last_step(LogKind.STEP)
        if reached > step:
            log.roll_back(step, {"from": reached, "steps": later, "best": best_step(store, step)})
    if later or reached > step:
        places = [store.set_aside(one, "rolled-back") for one in reversed(later)]
        run.record_event(Event.ROLLED_BACK, step=step, reached=reached, set_aside=places)
