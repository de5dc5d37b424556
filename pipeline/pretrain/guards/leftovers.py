"""Workers of an earlier start that are still there: two groups must not train a run at the same time.

The lock on a run's directory goes with the driver. Its workers go with it too, but not in the same moment: Ray notices
first that the driver is gone; and a worker that stands still, or lost its network, notices nothing. What cannot be
reached at all loses the run by its fence (`fence.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from cluster.artefacts.errors import StorageError
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.heartbeat import ENDED, Beat, is_here, process_of, read_heartbeats

_OBSERVATION_S = 12.0
"""Seconds without a beat after which a worker of another machine is taken for gone."""
_POLL_S = 0.5
_PATIENCE_S = 10.0
"""Seconds that a worker of this machine has to notice by itself."""


def end_leftovers(run: RunDirectory) -> None:
    """Wait for, or end, the workers that an earlier start left behind; call it holding the run's lock.

    Raises:
        StorageError: a worker on another machine still trains.
    """
    beats = [beat for beat in read_heartbeats(run) if beat.part != ENDED]
    _end_here([beat for beat in beats if process_of(beat) is not None], run)
    _require_silence([beat for beat in beats if not is_here(beat)], run)
    for beat in read_heartbeats(run):
        run.heartbeat(beat.rank).unlink(missing_ok=True)


def _end_here(beats: Sequence[Beat], run: RunDirectory) -> None:
    by_pid = {beat.pid: beat for beat in beats}
    processes = [process for beat in beats if (process := process_of(beat)) is not None]
    _, alive = psutil.wait_procs(processes, timeout=_PATIENCE_S)
    for process in alive:
        beat = by_pid[process.pid]
        run.record_event(Event.LEFTOVER_KILLED, rank=beat.rank, host=beat.host, pid=beat.pid, step=beat.step)
        process.kill()
    psutil.wait_procs(alive, timeout=_PATIENCE_S)


def _require_silence(beats: Sequence[Beat], run: RunDirectory) -> None:
    """Refuse while a worker that cannot be looked up here makes progress; clocks differ, so only changes count.

    One that is in a long step loses the run by its fence, before it writes anything.
    """
    before, deadline = {beat.rank: beat for beat in beats}, time.monotonic() + _OBSERVATION_S
    while before and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        for beat in read_heartbeats(run):
            if before.get(beat.rank, beat) != beat:
                raise StorageError(
                    f"{run.path} is still being trained by rank {beat.rank}, process {beat.pid} on {beat.host}.",
                    next_step=f"end it: ssh {beat.host} kill {beat.pid}; or wait until Ray has done so",
                )
