"""The group of workers that a run belongs to: the newest one. Earlier workers are ended, or lose the run.

The lock on a run's directory goes with the driver. Its workers go with it too, but not in the same moment: Ray notices
first that the driver is gone; and a worker that is stalled, or lost its network, notices nothing. `end_leftovers`
ends what can be reached. For the rest there is the fence: RUN/owner.json holds a token that every group replaces when
it starts. Workers that were cut off and come back find another token, and end without having written what others read:
neither a checkpoint nor a line of the log.
"""

from __future__ import annotations

import os
import platform
import time
from uuid import uuid4

import orjson
import psutil

from cluster.artefacts.errors import StorageError, TakenOverError
from cluster.artefacts.manifest import write_durably
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.state import ENDED, is_here, process_of, read_heartbeats

_FENCE_POLL_S = 1.0
OBSERVATION_S = 12.0
"""A worker of another machine counts as gone after so many seconds without a beat."""
_POLL_S = 0.5
PATIENCE_S = 10.0
"""Seconds that a worker of this machine has to notice by itself."""


class Fence:
    """The token of one group, on its rank 0."""

    def __init__(self, run: RunDirectory) -> None:
        """Take the run over from all earlier groups.

        Raises:
            StorageError: the file system refuses.
        """
        self._run = run
        self._contents = orjson.dumps(
            {"token": uuid4().hex, "host": platform.node(), "pid": os.getpid()}, option=orjson.OPT_INDENT_2
        )
        self._next_look_s = 0.0
        self._found_lost = False
        with self._run.refusals():
            write_durably(self._run.owner, self._contents)

    def require(self) -> None:
        """Raise TakenOverError when another group has taken the run over, StorageError when its directory is gone."""
        try:
            found = self._run.owner.read_bytes()
        except FileNotFoundError:
            found = b""
        except OSError:
            # A file system that refuses now refuses the checkpoint too, with a better message.
            return
        if found == self._contents:
            return
        try:
            owner = orjson.loads(found)
            other = f"process {owner['pid']} on {owner['host']}"
        except (ValueError, KeyError, TypeError):
            other = "another group"
        raise taken_over(self._run, other)

    def is_lost(self, *, now: bool = False) -> bool:
        """Whether another group has taken the run over, or it is gone; looks once a second, or `now`."""
        if self._found_lost or (not now and time.monotonic() < self._next_look_s):
            return self._found_lost
        self._next_look_s = time.monotonic() + _FENCE_POLL_S
        try:
            self.require()
        except (StorageError, TakenOverError):
            self._found_lost = True
        return self._found_lost


def taken_over(run: RunDirectory, by: str = "another group") -> TakenOverError | StorageError:
    """The error of a group whose run another group has taken over, or whose directory is gone."""
    if not run.exists:
        return StorageError(
            f"{run.path} is not there any more: it was moved, or its file system was unmounted.",
            kept="its log and its committed checkpoints, where they are now",
            next_step=f"put it back, then: cloze resume {run.typed}; or where it is now: cloze resume DIRECTORY",
        )
    return TakenOverError(
        f"{run.path} is trained by {by} now; this group has lost it.",
        kept="what this group saved before, and all that the other one saves",
        next_step=f"nothing, if that one trains; else, once both have ended: cloze resume {run.typed}",
    )


def end_leftovers(run: RunDirectory) -> None:
    """Wait for, or end, the remaining workers of an earlier start; call it holding the run's lock.

    A worker that cannot be looked up here is in the way while it makes progress; clocks differ, so only changes count.
    One that is in a long step loses the run by its fence, before it writes anything.

    Raises:
        StorageError: a worker on another machine still trains.
    """
    beats = [beat for beat in read_heartbeats(run) if beat.part != ENDED]
    here = {process: beat for beat in beats if (process := process_of(beat)) is not None}
    _, alive = psutil.wait_procs(list(here), timeout=PATIENCE_S)
    for process in alive:
        beat = here[process]
        run.record_event(Event.LEFTOVER_KILLED, rank=beat.rank, host=beat.host, pid=beat.pid, step=beat.step)
        process.kill()
    psutil.wait_procs(alive, timeout=PATIENCE_S)
    before = {beat.rank: beat for beat in beats if not is_here(beat)}
    deadline = time.monotonic() + OBSERVATION_S
    while before and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        for beat in read_heartbeats(run):
            if before.get(beat.rank, beat) != beat:
                raise StorageError(
                    f"{run.path} is still being trained by rank {beat.rank}, process {beat.pid} on {beat.host}.",
                    next_step=f"end it: ssh {beat.host} kill {beat.pid}; or wait until Ray has done so",
                )
    for beat in read_heartbeats(run):
        run.heartbeat(beat.rank).unlink(missing_ok=True)
