"""The one reader of a run's state: figures that operators watch, from its directory alone, read again and again.

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
from pipeline.run.directory import RunDirectory, RunInfo, list_runs
from pipeline.run.events import Event
from pipeline.run.history import Attempt, StoredSettings, list_attempts, tokens_by_step
from pipeline.run.log.lines import LogKind, decode, lines_backwards, log_size, read_new
from pipeline.run.state import ENDED, RunState, read_heartbeats, state_of
from pipeline.terms import TOTAL

WATCHED = frozenset(
    {LogKind.STEP, LogKind.HELD_OUT, LogKind.SYSTEM, LogKind.RANKS, LogKind.SAVING, LogKind.CHECKPOINT}
)
_SEARCHED_BYTES = 64 << 20
"""How far back the first look goes for kinds that are rare, or that the log may not have at all."""
_LONGEST_LINE_BYTES = 1 << 20
_KIND = re.compile(rb'"kind": ?"([^"]*)"')


def _search(log: Path) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    searched = 0
    for line in lines_backwards(log):
        searched += len(line) + 1
        kind = _KIND.search(line)
        name = kind[1].decode(errors="replace") if kind else ""
        # Decoding each line of a long log takes many times as long as searching its bytes.
        if name in WATCHED and name not in found and (entry := decode(line)) is not None:
            found[name] = entry
        if len(found) == len(WATCHED) or searched > _SEARCHED_BYTES:
            break
    return found


def _bytes_of_whole_lines(log: Path) -> int:
    if not log.exists():
        return 0
    with log.open("rb") as stream:
        end = stream.seek(0, 2)
        start = stream.seek(max(0, end - _LONGEST_LINE_BYTES))
        return start + stream.read().rfind(b"\n") + 1


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


class RunReader:
    """Reads the status of one run again and again, and only what has changed of it."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._offset = 0
        """Bytes of the log that were looked at; 0 before the first look."""
        self._newest: dict[str, Mapping[str, Any]] = {}
        self._settings: tuple[Any, StoredSettings, str] | None = None
        self._last: tuple[Any, RunStatus] | None = None

    @property
    def name(self) -> str:
        """Name of the run."""
        return self._run.path.name

    @property
    def changed_s(self) -> float:
        """When something was last written to the run's log or history; 0 if never."""
        return max((_stat(path)[0] for path in (self._run.log, self._run.history)), default=0) / 1e9

    def newest(self) -> Mapping[str, Mapping[str, Any]]:
        """The newest entry of each kind of WATCHED that the log has, as `decode` gives it. The first look reads the
        log's end, each later one what was added."""
        if not 0 < self._offset <= log_size(self._run):
            # The first look, or a log that was replaced. Lines that are appended meanwhile are read twice.
            self._offset = _bytes_of_whole_lines(self._run.log)
            self._newest = _search(self._run.log)
        entries, self._offset = read_new(self._run, self._offset)
        self._newest |= {entry["kind"]: entry for entry in entries if entry["kind"] in WATCHED}
        return self._newest

    def read(self) -> RunStatus:
        """The status now."""
        run = self._run
        key = [_stat(path) for path in (run.log, run.history, run.config_file, run.info_file, run.log_sent)]
        if self._last is not None and self._last[0] == key and self._last[1].state in _OVER:
            return self._last[1]
        try:
            found = self._read()
        except _DAMAGE as error:
            problem = error.problem if isinstance(error, ClozeError) else f"{type(error).__name__}: {error}"
            step = 0
            # The last step in the log, whatever else of the run is damaged.
            with suppress(*_DAMAGE):
                step = self.newest()[LogKind.STEP]["step"]
            found = RunStatus(run.path.name, str(run.path), UNREADABLE, problem, step=step)
        self._last = key, found
        return found

    def _read(self) -> RunStatus:
        run, info = self._run, self._run.info
        settings, config_hash = self._stored_settings()
        state, events = state_of(run), run.events()
        attempts = list_attempts(events)
        newest = self.newest()
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
            submission_id=submission_of(info, events),
            config_hash=config_hash,
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
            heartbeat_s=self._oldest_heartbeat(state, attempts),
            restarts=max(0, len(attempts) - 1),
            events=dict(Counter(str(event["event"]) for event in events)),
            unsent_bytes=self._unsent_bytes() if info.tracking_uri else 0,
        )

    def _stored_settings(self) -> tuple[StoredSettings, str]:
        key = _stat(self._run.config_file)
        if self._settings is None or self._settings[0] != key:
            settings = StoredSettings.of(self._run)
            self._settings = key, settings, hash_json(settings.plain)
        return self._settings[1:]

    def _oldest_heartbeat(self, state: RunState, attempts: list[Attempt]) -> float | None:
        if state.name not in RUNNING or not attempts:
            return None
        # By the clock of the storage, as every watcher of the run sees it.
        times = [
            _stat(self._run.heartbeat(beat.rank))[0] / 1e9
            for beat in read_heartbeats(self._run)
            if beat.rank < attempts[-1].world_size and beat.part != ENDED
        ]
        return min(times, default=None)

    def _unsent_bytes(self) -> int:
        sent = 0
        with suppress(OSError, ValueError):
            sent = int(self._run.log_sent.read_text())
        return max(0, log_size(self._run) - sent)


def submission_of(info: RunInfo, events: list[dict[str, Any]]) -> str:
    """The Ray job that drives a run, or drove it last; empty for none."""
    launches = [event for event in events if event["event"] == Event.LAUNCHED]
    return (launches[-1]["submission_id"] if launches else info.submission_id) or ""


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
    """Reads the runs of some directories."""

    def __init__(self, directories: Sequence[Path], *, days: float, most: int) -> None:
        """
        Args:
            days: runs that wrote nothing for so long are left out.
            most: runs that are read; those with the newest activity.
        """
        self._directories, self._seconds, self._most = directories, days * 86400, most
        self._readers: dict[Path, RunReader] = {}

    def read(self) -> tuple[list[RunStatus], int]:
        """The runs now, those that are seen to and the newest activity first; and how many are left out, because they
        were without activity for long, or are too many."""
        found = {run.path: run for directory in self._directories for run in list_runs(directory)}
        self._readers = {path: self._readers.get(path) or RunReader(run) for path, run in found.items()}
        since = time.time() - self._seconds
        newest = sorted(self._readers.values(), key=lambda reader: reader.changed_s, reverse=True)
        active: dict[str, RunReader] = {}
        for reader in newest:
            if reader.changed_s >= since:
                # A name means one run; the newer one of two copies.
                active.setdefault(reader.name, reader)
        shown = [reader.read() for reader in list(active.values())[: self._most]]
        # Stable: the newest activity stays first among runs that are seen to, and among the others.
        shown.sort(key=lambda status: status.state not in RUNNING)
        return shown, len(found) - len(shown)
