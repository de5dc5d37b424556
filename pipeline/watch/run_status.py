"""The one reader of a run's state: figures that operators watch, from its directory alone.

Its machines may be anywhere. A run whose files are damaged is `unreadable`, and hides no other.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.artefacts.errors import ClozeError
from cluster.artefacts.manifest import hash_json
from cluster.node_load import GpuLoad, NodeLoad
from pipeline.run.directory import RunDirectory, list_runs
from pipeline.run.events import Event
from pipeline.run.history import Attempt, StoredSettings, list_attempts, tokens_by_step
from pipeline.run.log.lines import LogKind, decode, lines_backwards
from pipeline.run.log.mlflow_sink import unsent_bytes
from pipeline.run.state import ENDED, read_heartbeats, state_of
from pipeline.terms import TOTAL

WATCHED = frozenset(
    {LogKind.STEP, LogKind.HELD_OUT, LogKind.SYSTEM, LogKind.RANKS, LogKind.SAVING, LogKind.CHECKPOINT}
)
SEARCHED_BYTES = 64 << 20
"""How far back the first look goes for kinds that are rare, or that the log may not have at all."""
_KIND = re.compile(rb'"kind": ?"([^"]*)"')
UNREADABLE = "unreadable"
RUNNING = frozenset({"starting", "running", "stalled"})
"""States of a run that a driver, or its workers, see to."""
_OVER = frozenset({"finished", "failed", "preempted"})
_DAMAGE = (ClozeError, OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run at one moment. Times are Unix times in seconds."""

    name: str
    place: str
    """Its directory."""
    state: str
    """A state of `pipeline/run/state.py`, or `unreadable`."""
    detail: str = ""
    run_id: str = ""
    """Run id in MLflow."""
    submission_id: str = ""
    """The Ray job that drives it, or drove it last; empty for none."""
    config_hash: str = ""
    """Hash of the stored configuration; 32 hex digits."""
    step: int = 0
    """Updates in the log. A step that is made again is not counted again, so it never falls."""
    num_steps: int | None = None
    tokens: int = 0
    """Tokens of text that these updates read."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest step's, by their names in the log."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    metric: str = TOTAL
    """The metric that decides between its evaluations."""
    ranks: Mapping[str, float] = field(default_factory=dict)
    saving: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By host, the newest figures of its machine."""
    logged_s: float | None = None
    """When the newest step was logged."""
    checkpoint_step: int | None = None
    checkpoint_s: float | None = None
    attempt_s: str = ""
    """When the newest attempt began; UTC, ISO 8601."""
    workers: tuple[Mapping[str, Any], ...] = ()
    """By rank, where the newest attempt runs."""
    heartbeat_s: float | None = None
    """The oldest heartbeat of a worker that has not ended."""
    restarts: int = 0
    """Attempts after the first."""
    events: Mapping[str, int] = field(default_factory=dict)
    """How often each kind of event is in its history."""
    unsent_bytes: int = 0
    """Bytes of the log that MLflow does not have; 0 for a run without a tracking store."""

    @property
    def memory_bytes(self) -> float | None:
        """Memory of the fullest rank: the GPU's, or the process's on a CPU."""
        names = ("reserved_gpu_memory_bytes", "host_memory_bytes")
        found = (self.ranks.get(f"max_{name}", self.metrics.get(name)) for name in names)
        return next((value for value in found if value is not None), None)


def changed_s(run: RunDirectory) -> float:
    """When something was last written to the run's log or history; 0 if never."""
    return max(_stat(path)[0] for path in (run.log, run.history)) / 1e9


class LogEnd:
    """The end of a run's log. The first look searches it backwards, each later one only what was added."""

    def __init__(self, run: RunDirectory) -> None:
        self._log = run.log
        self._line: bytes | None = None
        """The newest line of the last look, where the next one ends."""
        self._entries: dict[str, Mapping[str, Any]] = {}

    def newest(self) -> Mapping[str, Mapping[str, Any]]:
        """The newest entry of each kind of WATCHED, as `decode` gives it."""
        found: dict[str, Mapping[str, Any]] = {}
        newest, searched = None, 0
        for line in lines_backwards(self._log):
            newest = line if newest is None else newest
            if line == self._line:
                found = self._entries | found
                break
            searched += len(line) + 1
            kind = _KIND.search(line)
            name = kind[1].decode(errors="replace") if kind else ""
            # Decoding each line of a long log takes many times as long as searching its bytes.
            if name in WATCHED and name not in found and (entry := decode(line)) is not None:
                found[name] = entry
            if len(found) == len(WATCHED) or searched > SEARCHED_BYTES:
                break
        self._line, self._entries = newest, found
        return found


def read_status(run: RunDirectory, log: LogEnd | None = None) -> RunStatus:
    """The status of a run now.

    Args:
        log: for the next look at the same run.
    """
    log = log or LogEnd(run)
    try:
        return _read_status(run, log)
    except _DAMAGE as error:
        problem = error.problem if isinstance(error, ClozeError) else f"{type(error).__name__}: {error}"
        step = 0
        # The last step in the log, whatever else of the run is damaged.
        with suppress(*_DAMAGE):
            step = log.newest()[LogKind.STEP]["step"]
        return RunStatus(run.path.name, str(run.path), UNREADABLE, problem, step=step)


def _read_status(run: RunDirectory, log: LogEnd) -> RunStatus:
    info, settings = run.info, StoredSettings.of(run)
    state, events = state_of(run), run.events()
    attempts = list_attempts(events)
    launches = (event["submission_id"] for event in reversed(events) if event["event"] == Event.LAUNCHED)
    newest = log.newest()
    step = newest[LogKind.STEP]["step"] if LogKind.STEP in newest else 0
    checkpoint = newest.get(LogKind.CHECKPOINT)
    nodes: dict[str, dict[str, float]] = {}
    for name, value in _numbers(newest.get(LogKind.SYSTEM)).items():
        # Such as `HOST/cpu_utilization_percentage`.
        host, _, figure = name.rpartition("/")
        nodes.setdefault(host, {})[figure] = value
    return RunStatus(
        name=run.path.name,
        place=str(run.path),
        state=state.name,
        detail=state.detail,
        run_id=info.run_id,
        submission_id=next(launches, info.submission_id) or "",
        config_hash=hash_json(settings.plain),
        step=step,
        num_steps=settings.num_steps,
        tokens=tokens_by_step(run, settings)(step),
        metrics=_numbers(newest.get(LogKind.STEP)),
        held_out=_numbers(newest.get(LogKind.HELD_OUT)),
        metric=settings.metric,
        ranks=_numbers(newest.get(LogKind.RANKS)),
        saving=_numbers(newest.get(LogKind.SAVING)),
        nodes=nodes,
        logged_s=_time_of(newest.get(LogKind.STEP)),
        checkpoint_step=None if checkpoint is None else checkpoint["step"],
        checkpoint_s=_time_of(checkpoint),
        attempt_s=attempts[-1].time if attempts else "",
        workers=tuple(attempts[-1].event.get("workers") or ()) if attempts else (),
        heartbeat_s=_oldest_heartbeat(run, attempts) if state.name in RUNNING else None,
        restarts=max(0, len(attempts) - 1),
        events=dict(Counter(str(event["event"]) for event in events)),
        unsent_bytes=max(0, unsent_bytes(run)) if info.tracking_uri else 0,
    )


def _oldest_heartbeat(run: RunDirectory, attempts: list[Attempt]) -> float | None:
    # By the clock of the storage, as every watcher of the run sees it.
    times = [
        _stat(run.heartbeat(beat.rank))[0] / 1e9
        for beat in read_heartbeats(run)
        if attempts and beat.rank < attempts[-1].world_size and beat.part != ENDED
    ]
    return min(times, default=None)


def _stat(path: Path) -> tuple[int, int]:
    """(time of change in ns, bytes) of a file; zeros without one."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _numbers(entry: Mapping[str, Any] | None) -> dict[str, float]:
    data = {} if entry is None else entry["data"]
    return {
        str(name): float(value)
        for name, value in data.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _time_of(entry: Mapping[str, Any] | None) -> float | None:
    return None if entry is None else entry["time_ms"] / 1000


_GPU = re.compile(r"gpu_(\d+)_")


def load_of(name: str, figures: Mapping[str, float]) -> NodeLoad:
    """The load of a machine.

    Args:
        figures: from a log line `system`: percentages and megabytes (10^6 bytes).
    """

    def scaled(key: str, factor: float) -> float | None:
        return figures[key] * factor if key in figures else None

    numbers = sorted({int(found[1]) for key in figures if (found := _GPU.match(key))})
    return NodeLoad(
        name=name,
        cpu_ratio=scaled("cpu_utilization_percentage", 0.01),
        load_average=figures.get("load_average"),
        memory_bytes=scaled("system_memory_usage_megabytes", 1e6),
        memory_ratio=scaled("system_memory_usage_percentage", 0.01),
        disk_free_bytes=scaled("disk_available_megabytes", 1e6),
        gpus=tuple(
            GpuLoad(
                number=number,
                ratio=scaled(f"gpu_{number}_utilization_percentage", 0.01),
                memory_bytes=scaled(f"gpu_{number}_memory_usage_megabytes", 1e6),
                memory_ratio=scaled(f"gpu_{number}_memory_usage_percentage", 0.01),
                power_watts=figures.get(f"gpu_{number}_power_usage_watts"),
            )
            for number in numbers
        ),
    )


class RunsReader:
    """Reads the runs of some directories again and again; those that are over, only when a file of theirs changed."""

    def __init__(self, directories: Sequence[Path], *, days: float, most: int) -> None:
        """
        Args:
            days: runs that wrote nothing for so long are left out.
            most: runs that are read; those with the newest activity.
        """
        self._directories, self._seconds, self._most = directories, days * 86400, most
        self._over: dict[Path, tuple[Any, RunStatus]] = {}
        self._logs: dict[Path, LogEnd] = {}

    def read(self) -> tuple[list[RunStatus], int]:
        """The runs now, those that are seen to and the newest activity first; and how many are left out, because they
        were without activity for long, or are too many."""
        found = {run.path: run for directory in self._directories for run in list_runs(directory)}
        since = time.time() - self._seconds
        active: dict[str, RunDirectory] = {}
        for run in sorted(found.values(), key=changed_s, reverse=True):
            if changed_s(run) >= since:
                # A name means one run; the newer one of two copies.
                active.setdefault(run.path.name, run)
        shown = [self._status(run) for run in list(active.values())[: self._most]]
        # Stable: the newest activity stays first among runs that are seen to, and among the others.
        shown.sort(key=lambda status: status.state not in RUNNING)
        return shown, len(found) - len(shown)

    def _status(self, run: RunDirectory) -> RunStatus:
        key = [_stat(path) for path in (run.log, run.history, run.config_file, run.info_file, run.log_sent)]
        if run.path in self._over and self._over[run.path][0] == key:
            return self._over[run.path][1]
        status = read_status(run, self._logs.setdefault(run.path, LogEnd(run)))
        if status.state in _OVER:
            self._over[run.path] = key, status
            del self._logs[run.path]
        return status
