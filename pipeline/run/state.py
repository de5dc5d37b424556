"""Whether a run is running: what its history says last, and whether its workers give signs of life."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from cluster.artefacts.owner import find_process, is_in_use, this_machine
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.heartbeat import (
    ENDED,
    Beat,
    is_here,
    process_of,
    read_heartbeats,
)
from pipeline.run.history import last_logged
from pipeline.run.log.kinds import LogKind
from pipeline.run.stored_settings import StoredSettings

State = Literal["created", "starting", "running", "stalled", "lost", "finished", "preempted", "failed"]

_STATIONS = (Event.LAUNCHED, Event.LOST, Event.STARTED, Event.FINISHED, Event.FAILED, Event.PREEMPTED)
"""Events after which a run is in another state."""


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
    beats = [beat for beat in read_heartbeats(run) if beat.rank < int(last["world_size"])]
    return _by_heartbeats(run, beats)


def _silent_s(run: RunDirectory, beat: Beat) -> float:
    """Seconds since a heartbeat. The timeout is long enough for clocks of machines that differ by seconds."""
    try:
        return time.time() - run.heartbeat(beat.rank).stat().st_mtime
    except OSError:
        return 0.0


def _by_driver(run: RunDirectory, launch: Mapping[str, Any]) -> RunState:
    """The state of a run that was launched, and whose workers have not started training yet."""
    who = f"its driver (process {launch.get('pid')} on {launch.get('host')})"
    alive = _is_driver_alive(launch) if _is_here(launch) else is_held(run)
    if alive:
        return RunState("starting", f"{who} prepares the workers")
    return RunState("lost", f"{who} ended before training began, without a word")


def _is_here(launch: Mapping[str, Any]) -> bool:
    return launch.get("machine") == this_machine()


def _is_driver_alive(launch: Mapping[str, Any]) -> bool:
    try:
        return find_process(int(launch["pid"]), float(launch["started_s"])) is not None
    except (KeyError, ValueError):
        return False


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
    late = [beat for beat in beats if beat.part != ENDED and _silent_s(run, beat) > beat.timeout_s]
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
