"""Watch the heartbeats: name the rank that is behind when training stalls, and end stalled ranks.

A stalled rank ends itself and writes its stacks (`Heartbeat`). By then all ranks are stalled, because they
wait for the one that is behind; and a stopped process does not even end. So the driver looks a little earlier, writes
the rank that is behind into the run's history, and a little later kills stalled processes that are still there.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster import logs, signals
from cluster.artefacts.errors import StalledError
from cluster.artefacts.owner import repeated
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.lifecycle import record_failure
from pipeline.run.state import ENDED, Beat, is_here, process_of, read_heartbeats

NAMED_AFTER = 0.9
"""A silent rank is named after this share of the timeout: before any of them has ended itself."""
_AT_END_AFTER = 0.95
"""Rank 0 of a group without a driver ends itself after this share of the timeout: just before its alarm."""
_KILLED_AFTER = 1.1
_KILL_DELAY_S = 3.0
_POLL_SHARE = 0.05
"""Share of the timeout between two looks: so that the naming is not missed."""
_LONGEST_POLL_S = 15.0


@dataclass(frozen=True, slots=True)
class Stall:
    """Training that stood still."""

    beat: Beat
    """The last sign of life of the rank that is behind."""
    silent_s: float
    state: str
    """State of its process, as the system calls it, such as `sleeping` or `stopped`; `gone`, or `elsewhere` for a
    process on another machine."""
    waiting: tuple[int, ...]
    """The ranks that were silent too, waiting for it or stuck as well."""

    def __str__(self) -> str:
        beat = self.beat
        return (
            f"rank {beat.rank} (process {beat.pid} on {beat.host}, {self.state}), silent for {self.silent_s:.0f} s at"
            f" step {beat.step} in {beat.part}"
        )


class StallWatch:
    """Looks at the heartbeats of a run; ages are by this machine's clock, because clocks of machines differ."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._seen: dict[int, tuple[Beat, float]] = {}
        """By rank, its last beat, and when it was first seen (monotonic)."""
        self._replaced: list[tuple[Beat, float]] = []
        """The last beats of processes whose rank another process has taken over, and since when."""
        self._named: set[tuple[int, str, int, float]] = set()
        self.stalls: list[Stall] = []
        """All that happened, in order."""

    def look(self, now: float) -> None:
        """Read the heartbeats at `now`, in monotonic seconds; name the rank that is behind, and kill stalled processes
        that did not end themselves."""
        for beat in read_heartbeats(self._run):
            before = self._seen.get(beat.rank)
            if before is not None and _key(before[0]) != _key(beat):
                self._replaced.append((before[0], now))
            if before is None or before[0] != beat:
                self._seen[beat.rank] = beat, now
        late = {
            rank: (beat, now - since)
            for rank, (beat, since) in self._seen.items()
            if beat.part != ENDED and now - since > NAMED_AFTER * beat.timeout_s
        }
        alive = {rank: pair for rank, pair in late.items() if _state_of(pair[0]) != "gone"}
        try:
            if alive:
                # A stopped process is behind all others, then the lowest step, then the longest silence.
                behind = min(
                    alive.values(),
                    key=lambda pair: (_state_of(pair[0]) != psutil.STATUS_STOPPED, pair[0].step, -pair[1]),
                )
                self._name(*behind, silent=sorted(late))
        finally:
            for beat, silent_s in alive.values():
                if silent_s > _KILLED_AFTER * beat.timeout_s + _KILL_DELAY_S:
                    self._end(beat)
            for beat, since in self._replaced:
                if now - since > _KILL_DELAY_S:
                    self._end(beat)

    def at_end(self, now: float) -> Stall | None:
        """The last stall, if rank 0 is about to be ended by its alarm."""
        beat, since = self._seen.get(0, (None, now))
        if beat is None or not self.stalls or beat.part == ENDED:
            return None
        return self.stalls[-1] if now - since > _AT_END_AFTER * beat.timeout_s else None

    def last_of(self, beats: Sequence[Beat]) -> Stall | None:
        """The last stall, if it ended the attempt with these heartbeats: a rank gave no sign after it."""
        return next((one for one in reversed(self.stalls) if one.beat in beats), None)

    def _name(self, beat: Beat, silent_s: float, silent: Sequence[int]) -> None:
        if _key(beat) in self._named:
            return
        waiting = tuple(rank for rank in silent if rank != beat.rank)
        stall = Stall(beat, silent_s, _state_of(beat), waiting)
        if not self.stalls or self.stalls[-1].beat != beat:
            self.stalls.append(stall)
        # If the file system refuses, the next look writes it.
        self._run.record_event(
            Event.STALLED,
            **beat.model_dump(include={"rank", "host", "pid", "step", "part"}),
            silent_s=round(silent_s, 1),
            state=stall.state,
            waiting=waiting,
        )
        self._named.add(_key(beat))

    def _end(self, beat: Beat) -> None:
        """SIGKILL for a process of this machine that should have ended itself."""
        process = process_of(beat)
        if process is None:
            return
        try:
            process.kill()
        except psutil.Error as error:
            self._run.record_event(Event.KILL_FAILED, rank=beat.rank, pid=beat.pid, message=str(error))
            return
        self._run.record_event(Event.KILLED, rank=beat.rank, host=beat.host, pid=beat.pid)


@contextmanager
def watching(run: RunDirectory, *, without_driver: bool = False) -> Iterator[StallWatch]:
    """Watch a run from a thread for the time of the block.

    Args:
        without_driver: whether this is the process of rank 0 in a group that no driver watches: a stall ends it with
            34. The alarm of `Heartbeat` comes a little later and ends every rank without a word, also where the
            interpreter hangs.
    """
    watch = StallWatch(run)
    poll_s = min(_LONGEST_POLL_S, _POLL_SHARE * run.config().guards.stall_timeout_s)

    def look() -> None:
        try:
            watch.look(time.monotonic())
        finally:
            if without_driver and (stall := watch.at_end(time.monotonic())):
                _end_rank_zero(run, stall)

    with repeated(look, poll_s, name="stall-watch"):
        yield watch


def _end_rank_zero(run: RunDirectory, stall: Stall) -> None:
    stacks = run.stack_file(0, platform.node(), os.getpid())
    with suppress(OSError), stacks.open("a") as stream:
        faulthandler.dump_traceback(stream)
    error = stalled(run, 0, stall, [stacks])
    record_failure(run, error)
    with suppress(OSError):
        logs.say(f"\n{error}", "error", **error.members)
    signals.end_children()
    # The main thread waits for the other ranks.
    os._exit(error.exit_code)


def stalled(run: RunDirectory, num_restarts: int, stall: Stall, stacks: Sequence[Path]) -> StalledError:
    """The error of a run that stood still after all restarts, if it has any; `stacks` are files that were written."""
    shown = f"; the stacks are in {', '.join(map(str, stacks))}" if stacks else ""
    spent = f", and {num_restarts} restarts are spent" if num_restarts else ""
    return StalledError(
        f"{run.path.name} stood still{spent}. Behind was {stall}{shown}.",
        kept="all committed checkpoints",
        next_step=f"look after that machine, then: cloze resume {run.typed}",
    )


def _state_of(beat: Beat) -> str:
    process = process_of(beat)
    if process is not None:
        try:
            return str(process.status())
        except psutil.Error:
            return "gone"
    return "gone" if is_here(beat) else "elsewhere"


def _key(beat: Beat) -> tuple[int, str, int, float]:
    return beat.rank, beat.host, beat.pid, beat.started_s
