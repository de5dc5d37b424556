"""Signs of life of every rank, and the end of one that gives none.

RUN/heartbeats/rank-00000             what the rank does at the moment: one line of JSON, written over and over
RUN/stacks/rank-00000-HOST-PID.txt    the stacks of all its threads, when it stood still for too long

A beat is progress, and is late after a time that depends on what the rank does.

Stacks are written while Python does nothing, by a thread of C that needs no interpreter lock (`faulthandler`). A
stopped or vanished process cannot do even that; `stall_watch.py` sees to it.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import time
from contextlib import suppress

import orjson
import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from cluster.artefacts.errors import StorageError
from cluster.artefacts.owner import born_s, find_process, this_machine
from cluster.artefacts.reading import read_bytes
from pipeline.run.directory import RunDirectory

ENDED = "ended"
"""Part of a rank that came to its end in good order."""
FIRST_TIMES_AS_LONG = 10.0
"""The first step, and a part that comes for the first time, compile, load and open: so many times the timeout."""
_SLOW_PARTS = frozenset({"saving", "loading"})
"""Parts that take as long as storage does, every time."""
_RECORD_BYTES = 512
_REARM_SHARE = 0.01
"""Share of the timeout that may pass before the alarm is set anew: setting it starts a thread (70 us)."""


class Beat(BaseModel):
    """The last sign of life of a rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    host: str
    machine: str = ""
    """Identifies machines and containers of the same name: see `this_machine`."""
    pid: int
    started_s: float
    """Seconds between the boot of its machine and the start of the process: distinguishes it from a later one with its
    number."""
    step: int
    """The update that it works on."""
    num_steps: int
    """Updates that the process has finished since it began."""
    part: str
    """Part of the update, such as `data`, `forward`, `update`, `evaluation` or `saving`."""
    time_s: float
    """Unix time of the beat, by the clock of its host; for people, because clocks differ."""
    timeout_s: float
    """Seconds after which the next beat is too late."""


class Heartbeat:
    """The heartbeat of this process; close it to cancel its alarm."""

    def __init__(self, run: RunDirectory, rank: int, timeout_s: float) -> None:
        """Start with the alarm set for the time that a first step may take.

        Args:
            timeout_s: seconds without a beat after which the stacks are written and the process is ended.

        Raises:
            StorageError: the file system refuses.
        """
        self._timeout_s = timeout_s
        process = psutil.Process()
        self._who = {
            "rank": rank,
            "host": platform.node(),
            "machine": this_machine(),
            "pid": process.pid,
            "started_s": born_s(process),
        }
        self._first_step: int | None = None
        self._parts: set[str] = set()
        """Parts that earlier steps went through."""
        self._current: set[str] = set()
        self._step = -1
        self._armed_at, self._armed_s = 0.0, 0.0
        with run.refusals():
            run.heartbeats.mkdir(exist_ok=True)
            run.stacks.mkdir(exist_ok=True)
            # Kept open: a process that runs out of memory, or loses the file system, can still write.
            self._file = os.open(run.heartbeat(rank), os.O_RDWR | os.O_CREAT, 0o644)
            self._stacks_path = run.stack_file(rank, platform.node(), process.pid)
            # Added to: in containers, processes of all starts have one number.
            self._stacks = self._stacks_path.open("a")
            self._write(-1, "starting", timeout_s * FIRST_TIMES_AS_LONG)

    def beat(self, step: int, part: str) -> None:
        """Say that this rank begins `part` of `step`.

        Until the second step that it is called with, in a part that it was not called with before, and in those that
        wait for storage, the alarm has the longer timeout of a first step.
        """
        if self._first_step is None:
            self._first_step = step
        # A run that goes back after a loss spike may come to earlier steps than it began with.
        if step != self._step:
            self._parts |= self._current
            self._current = set()
        self._current.add(part)
        first = step <= self._first_step or part in _SLOW_PARTS or part not in self._parts
        # Training goes on where a file system refuses a sign of life for a moment.
        with suppress(OSError):
            self._write(step, part, self._timeout_s * (FIRST_TIMES_AS_LONG if first else 1.0))

    def close(self) -> None:
        """Cancel the alarm. An empty file of stacks is removed."""
        if self._stacks.closed:
            return
        faulthandler.cancel_dump_traceback_later()
        with suppress(OSError):
            self._put(self._step, ENDED, 0.0)
        os.close(self._file)
        self._stacks.close()
        if self._stacks_path.stat().st_size == 0:
            self._stacks_path.unlink()

    def _write(self, step: int, part: str, timeout_s: float) -> None:
        now = time.monotonic()
        if timeout_s != self._armed_s or now - self._armed_at > timeout_s * _REARM_SHARE:
            later = timeout_s * (1.0 + _REARM_SHARE)
            faulthandler.dump_traceback_later(later, exit=True, file=self._stacks)
            self._armed_at, self._armed_s = now, timeout_s
        self._put(step, part, timeout_s)

    def _put(self, step: int, part: str, timeout_s: float) -> None:
        self._step = step
        record = {
            **self._who,
            "step": step,
            "num_steps": 0 if self._first_step is None else max(0, step - self._first_step),
            "part": part,
            "time_s": time.time(),
            "timeout_s": timeout_s,
        }
        # One write of one size: a reader sees this beat or the one before, never a mixture.
        os.pwrite(self._file, orjson.dumps(record).ljust(_RECORD_BYTES - 1) + b"\n", 0)


def is_here(beat: Beat) -> bool:
    """Whether the process of a beat can be looked up on this machine."""
    return beat.machine == this_machine() if beat.machine else beat.host == platform.node()


def read_heartbeats(run: RunDirectory) -> list[Beat]:
    """The last sign of life of every rank that ever gave one, by rank."""
    found = []
    for path in sorted(run.heartbeats.glob("rank-*")):
        try:
            found.append(Beat.model_validate(orjson.loads(read_bytes(path))))
        except (OSError, StorageError, ValueError, ValidationError):
            continue  # Created and not yet written.
    return found


def has_made_updates(run: RunDirectory) -> bool:
    """Whether the newest processes at a run have finished an update."""
    return any(beat.num_steps > 0 for beat in read_heartbeats(run))


def process_of(beat: Beat) -> psutil.Process | None:
    """The process of a beat, when it runs on this machine and has not ended."""
    return find_process(beat.pid, beat.started_s) if is_here(beat) else None
