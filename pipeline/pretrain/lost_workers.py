"""Which worker died, where, and why: recorded in the run's history when a group failed."""

from __future__ import annotations

import re

from cluster.group import GroupFailure
from pipeline.pretrain.memory import was_killed_for_memory
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.heartbeat import Beat, read_heartbeats

_NODE_LOST = re.compile(
    r"NodeDied|NODE_DIED|node (?:has|had)? ?(?:died|been (?:lost|terminated|preempted))", re.IGNORECASE
)
_PROCESS_LOST = re.compile(
    r"ActorDied|ActorUnavailable|actor died|WorkerCrashed|unexpected(?:ly)? (?:system|exits)"
)


def record_lost_workers(run: RunDirectory, failure: GroupFailure, oom_kills: int) -> None:
    """Record the workers that died, before the group is started again.

    Args:
        failure: the errors of the group's ranks.
        oom_kills: processes that the kernel of this machine has ended for memory since the driver began.
    """
    known = {worker.get("pid") for event in run.events(Event.WORKERS_LOST) for worker in event["workers"]}
    # A group that failed before its workers said anything finds the last words of the one before.
    beats = {beat.rank: beat for beat in read_heartbeats(run) if beat.pid not in known}
    errors = {rank: str(error) for rank, error in failure.errors.items()}
    workers = []
    for rank in sorted(errors or beats):
        beat = beats.get(rank)
        place = (
            {} if beat is None else {"host": beat.host, "pid": beat.pid, "step": beat.step, "part": beat.part}
        )
        if beat is not None and _stood_still(run, beat):
            why = "ended itself, because training stood still; see `stalled`"
        else:
            why = _why(errors.get(rank, str(failure)), oom_kills)
        workers.append({"rank": rank, **place, "why": why})
    # What died by itself comes before what only lost its connection to it.
    workers.sort(key=lambda one: (one["why"].startswith("raised"), one["rank"]))
    run.record_event(Event.WORKERS_LOST, workers=workers, message=_why(str(failure), oom_kills))


def _stood_still(run: RunDirectory, beat: Beat) -> bool:
    """Whether a rank's alarm has written its stacks, and ended it."""
    path = run.stack_file(beat.rank, beat.host, beat.pid)
    return path.is_file() and path.stat().st_size > 0


def _why(error: str, oom_kills: int) -> str:
    if _NODE_LOST.search(error):
        return "its node was lost"
    if was_killed_for_memory(error):
        return "Ray ended it, because the memory of its machine was nearly full"
    if _PROCESS_LOST.search(error):
        memory = (
            "; the kernel ended processes for memory meanwhile (dmesg names them)" if oom_kills > 0 else ""
        )
        return f"its process was killed or crashed{memory}"
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return f"raised {lines[-1][:500]}" if lines else "no reason is known"
