"""Whether a run is running: what its history says last, and whether its ranks give signs of life.

RUN/heartbeats/rank-00000             what the rank does at the moment: one line of JSON, written over and over
RUN/stacks/rank-00000-HOST-PID.txt    the stacks of all its threads, when it stood still for too long

A beat is progress, and is late after a time that depends on what the rank does. Stacks are written while Python does
nothing, by a thread of C that needs no interpreter lock (`faulthandler`). A stopped or vanished process cannot do even
that; `stall_watch.py` sees to it.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from cluster.artefacts.errors import StorageError
from cluster.artefacts.owner import find_process, is_in_use, this_machine, this_process
from cluster.artefacts.reading import read_bytes
from cluster.artefacts.storage import contents_of
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.history import StoredSettings, last_logged
from pipeline.run.log.lines import LogKind

ENDED = "ended"
"""Part of a rank that came to its end in good order."""
FIRST_TIMES_AS_LONG = 10.0
"""The first step, and a part that comes for the first time, compile, load and open: so many times the timeout."""
_SLOW_PARTS = frozenset({"saving", "loading"})
"""Parts that take as long as storage does, every time."""
_RECORD_BYTES = 512
_REARM_SHARE = 0.01
"""Share of the timeout that may pass before the alarm is set again: setting it starts a thread (70 us)."""


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
    """The next beat is too late after so many seconds."""


class Heartbeat:
    """The heartbeat of this process; close it to cancel its alarm."""

    def __init__(self, run: RunDirectory, rank: int, timeout_s: float) -> None:
        """Start with the alarm set for the time that a first step may take.

        Args:
            timeout_s: after so many seconds without a beat, the stacks are written and the process is ended.

        Raises:
            StorageError: the file system refuses.
        """
        self._timeout_s = timeout_s
        self._who = {"rank": rank, **this_process()}
        self._first_step: int | None = None
        self._parts: set[str] = set()
        """Parts that earlier steps went through."""
        self._current: set[str] = set()
        self.step = -1
        """The update that the last beat was of; -1 before the first."""
        self._armed_at, self._armed_s = 0.0, 0.0
        with run.refusals():
            run.heartbeats.mkdir(exist_ok=True)
            run.stacks.mkdir(exist_ok=True)
            # Kept open: a process that runs out of memory, or loses the file system, can still write.
            self._file = os.open(run.heartbeat(rank), os.O_RDWR | os.O_CREAT, 0o644)
            self._stacks_path = run.stack_file(rank, platform.node(), os.getpid())
            # Added to: in containers, processes of all starts have one number.
            self._stacks = self._stacks_path.open("a")
            self._write(-1, "starting", timeout_s * FIRST_TIMES_AS_LONG)

    def beat(self, step: int, part: str) -> None:
        """Record that this rank begins `part` of `step`.

        The first step, parts that are new, and parts that wait for storage get the longer timeout.
        """
        if self._first_step is None:
            self._first_step = step
        # A run that goes back after a loss spike may come to earlier steps than it began with.
        if step != self.step:
            self._parts |= self._current
            self._current = set()
        self._current.add(part)
        first = step <= self._first_step or part in _SLOW_PARTS or part not in self._parts
        # Training continues if a file system refuses a sign of life for a moment.
        with suppress(OSError):
            self._write(step, part, self._timeout_s * (FIRST_TIMES_AS_LONG if first else 1.0))

    def close(self) -> None:
        """Cancel the alarm. An empty file of stacks is removed."""
        if self._stacks.closed:
            return
        faulthandler.cancel_dump_traceback_later()
        with suppress(OSError):
            self._put(self.step, ENDED, 0.0)
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
        self.step = step
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


State = Literal["created", "starting", "running", "stalled", "lost", "finished", "preempted", "failed"]

_STATIONS = (Event.LAUNCHED, Event.LOST, Event.STARTED, Event.FINISHED, Event.FAILED, Event.PREEMPTED)
"""Events that change the state of a run."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run."""

    name: State
    """`created`: never started. `starting`: its driver prepares the workers, or starts them again. `stalled`: a worker
    gives no sign of life any more, or too late. `lost`: all workers of this machine, and the driver, are gone and
    recorded nothing. `preempted`: stopped as asked, and saved."""
    detail: str = ""
    """More for an operator, such as the error or the activity; may be empty."""


def state_of(run: RunDirectory) -> RunState:
    """The state of a run."""
    ends = run.events(*_STATIONS)
    if not ends:
        return RunState("created")
    last = ends[-1]
    if last["event"] == Event.LOST:
        return RunState("lost", str(last.get("message", "")))
    if last["event"] == Event.LAUNCHED:
        return _by_driver(run, last)
    if last["event"] == Event.FINISHED or made_last_step(run):
        return RunState("finished")
    if last["event"] == Event.PREEMPTED:
        return RunState("preempted", f"at step {last.get('step')}: {last.get('reason')}")
    if last["event"] == Event.FAILED:
        name = str(last.get("error", ""))
        message = (str(last.get("message", "")).splitlines() or [""])[0]
        return RunState(
            "preempted" if name == "PreemptedError" else "failed", f"{name}: {message}".strip(": ")
        )
    if is_held(run) and not any(map(process_of, read_heartbeats(run))):
        launches = [event for event in ends if event["event"] == Event.LAUNCHED]
        if launches and _is_here(launches[-1]):
            return RunState("starting", "its workers are started again, or give their last words")
    with contents_of(run.history):
        world_size = int(last["world_size"])
    return _by_heartbeats(run, [beat for beat in read_heartbeats(run) if beat.rank < world_size])


def _by_driver(run: RunDirectory, launch: Mapping[str, Any]) -> RunState:
    """The state of a run that was launched, and whose workers have not started training yet."""
    who = f"its driver (process {launch.get('pid')} on {launch.get('host')})"
    alive = not _is_here(launch) and is_held(run)
    with suppress(KeyError, ValueError):
        if _is_here(launch):
            alive = find_process(int(launch["pid"]), float(launch["started_s"])) is not None
    if alive:
        return RunState("starting", f"{who} prepares the workers")
    return RunState("lost", f"{who} ended before training began, without a word")


def _is_here(launch: Mapping[str, Any]) -> bool:
    return launch.get("machine") == this_machine()


def is_held(run: RunDirectory) -> bool:
    """Whether a process trains or changes the run; False on a file system without locks."""
    return is_in_use(run.path)


def made_last_step(run: RunDirectory) -> bool:
    """Whether the checkpoint of the last step was saved: without a driver, no process records the end."""
    logged = last_logged(run, LogKind.CHECKPOINT)
    if logged is None:
        return False
    num_steps = StoredSettings.of(run).num_steps
    return num_steps is not None and logged[0] >= num_steps


def _by_heartbeats(run: RunDirectory, beats: list[Beat]) -> RunState:
    """The state of a run that started, and whose end was not recorded."""
    here = [beat for beat in beats if is_here(beat)]
    if here and not any(process_of(beat) for beat in here):
        if all(beat.part == ENDED for beat in beats):
            return RunState("lost", "its workers ended, and no process recorded why")
        return RunState("lost", f"no worker is left on {platform.node()}; {_doing(_oldest(beats))}")
    late = []
    for beat in beats:
        # The timeout is long enough for clocks of machines that differ by seconds.
        with suppress(OSError):
            silent_s = time.time() - run.heartbeat(beat.rank).stat().st_mtime
            if beat.part != ENDED and silent_s > beat.timeout_s:
                late.append(beat)
    if late:
        return RunState("stalled", _doing(_oldest(late)))
    return RunState("running", _doing(_oldest(beats)) if beats else "")


def _oldest(beats: list[Beat]) -> Beat:
    """The rank that is behind: the others wait for it."""
    return min(beats, key=lambda beat: (beat.step, beat.time_s))


def _doing(beat: Beat) -> str:
    since = datetime.fromtimestamp(beat.time_s, UTC).isoformat(timespec="seconds")
    return (
        f"rank {beat.rank} (pid {beat.pid} on {beat.host}) in {beat.part} of update {beat.step} since {since}"
    )
