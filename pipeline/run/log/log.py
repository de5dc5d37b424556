"""The log of a training run: every step is written to disk first, and sent to MLflow from there.

`log.jsonl` in the run's directory is append-only and is the truth; MLflow is a copy that a process of its own keeps
up to date (`sender.py`). A tracking store that is down, slow or restarted costs training nothing.

A resumed run repeats the steps after its checkpoint; those that are in the log already are not written again.

`log.seals` has hashes of the log's stretches, so that damage that leaves its lines readable is noticed:

    {"start": 0, "end": 41230, "xxh3_128": "..."}

A stretch ends where the log is known to be on the disk itself: before a checkpoint, and at the end of an attempt. Lines
that a killed run wrote after the last stretch are in none until it is resumed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson
import xxhash

from cluster.artefacts.errors import StorageError
from cluster.artefacts.reading import read_json_lines
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind, encode, entries_backwards
from pipeline.run.log.sender import Sender

_BLOCK_BYTES = 1 << 20


class LogSeals:
    """Hashes a log as it is written, from the end of the last stretch on."""

    def __init__(self, run: RunDirectory, size: int) -> None:
        """
        Args:
            size: bytes of the log.
        """
        self._path = run.log_seals
        sealed = next((end for _, end, _ in reversed(_stretches(self._path))), 0)
        self._start, self._end = min(sealed, size), size
        self._digest = _hashed(run.log, self._start, size)

    def add(self, line: bytes) -> None:
        """Hash a line that was written."""
        self._digest.update(line)
        self._end += len(line)

    def close_stretch(self) -> None:
        """End the stretch here, once the log is on the disk. A full disk leaves the stretch open."""
        if self._end == self._start:
            return
        stretch = {"start": self._start, "end": self._end, "xxh3_128": self._digest.hexdigest()}
        with suppress(OSError), self._path.open("ab") as stream:
            # After a line break: the last line of the file may be torn.
            stream.write(b"\n" + orjson.dumps(stretch))
            stream.flush()
            os.fsync(stream.fileno())
            self._start, self._digest = self._end, xxhash.xxh3_128()


def damage_of_log(run: RunDirectory) -> str:
    """The first damage to a log, in words; empty without any."""
    path = run.log
    size = path.stat().st_size if path.exists() else 0
    for start, end, digest in _stretches(run.log_seals):
        if end > size:
            return f"it has {size} bytes, and had {end} when it was sealed"
        if _hashed(path, start, end).hexdigest() != digest:
            return f"bytes {start} to {end} were altered since they were written"
    return ""


def _stretches(path: Path) -> list[tuple[int, int, str]]:
    """Start, end and hash of every stretch; torn lines are left out."""
    found = []
    for stretch in read_json_lines(path):
        with suppress(ValueError, TypeError, KeyError):
            found.append((int(stretch["start"]), int(stretch["end"]), stretch["xxh3_128"]))
    return found


def _hashed(path: Path, start: int, end: int) -> xxhash.xxh3_128:
    """The hash of the bytes of a file from `start` to `end`."""
    digest = xxhash.xxh3_128()
    if start < end:
        with path.open("rb") as stream:
            stream.seek(start)
            while start < end and (block := stream.read(min(_BLOCK_BYTES, end - start))):
                start += len(block)
                digest.update(block)
    return digest


class RunLog:
    """Appends to `log.jsonl`, and to the run's history. Of a group, rank 0 writes; the others' calls do nothing."""

    def __init__(
        self,
        run: RunDirectory,
        *,
        since: int = 0,
        writes: bool = True,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            since: the step of the checkpoint that the run continues from. Only the log from there on is read: its last
                lines, where that is the last step of a long run.
            writes: whether this process writes; one of a group does.
            is_lost: whether another group has taken the run over. Asked before every line, because a machine may stop
                for minutes between any two; then nothing is written any more.

        Raises:
            StorageError: the log cannot be written.
        """
        self._run, self._writes, self._is_lost = run, writes, is_lost
        self.senders: list[Sender] = []
        """The processes that copy the log to tracking services; closed with the log."""
        self._last: dict[str, int] = {}
        self._events: set[bytes] = set()
        self._recorded: dict[int, dict[str, Any]] = {}
        self._evaluated: dict[int, int] = {}
        self._descriptor = -1
        if not writes:
            return
        with _refusals(self._run):
            self._descriptor = os.open(run.log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = self._drop_torn_line()
        self._seals = LogSeals(run, self._size)
        self._read_back_to(since)

    def write(self, kind: str, step: int, data: Mapping[str, Any]) -> bool:
        """Append an entry unless this kind already has one for `step` or later; returns whether it did.

        Raises:
            StorageError: the disk is full, or refuses. The log is as it was before, and the run can be resumed from
                its last checkpoint.
        """
        if step <= self.last_step(kind):
            return False
        time_ms = _now_ms()
        if not self._append(encode(kind, step, time_ms, data)):
            return False
        self._last[kind] = step
        if kind == LogKind.HELD_OUT:
            self._evaluated[step] = time_ms
        if kind == LogKind.STEP:
            self._recorded[step] = dict(data)
        elif kind == LogKind.CHECKPOINT:
            # Earlier steps will not be repeated, except from an older checkpoint: `recorded` then reads again.
            self._recorded = {number: kept for number, kept in self._recorded.items() if number > step}
            self._evaluated = {number: time for number, time in self._evaluated.items() if number > step}
        return True

    def event(self, kind: str, step: int, data: Mapping[str, Any]) -> bool:
        """Append an event at `step`, which may have several, to log and history, unless an equal one is in the log
        already because the run repeats its steps; returns whether it did.
        """
        known = encode(kind, step, 0, data)
        if known in self._events or not self._append(encode(kind, step, _now_ms(), data)):
            return False
        self._events.add(known)
        self._run.record_event(Event(kind), step=step, **data)
        return True

    def history(self, event: Event, **details: Any) -> None:
        """Append to the run's history alone, which is for operators."""
        if self._writes:
            self._run.record_event(event, **details)

    def roll_back(self, step: int, data: Mapping[str, Any]) -> None:
        """Append a rollback to `step`; entries of later steps are void, and these steps are logged again."""
        self._append(encode(LogKind.ROLLED_BACK, step, _now_ms(), data))

    def last_step(self, kind: str) -> int:
        """Step of the newest entry of this kind from `since` on; -1 when there is none."""
        return self._last.get(kind, -1)

    def recorded(self, step: int) -> dict[str, Any] | None:
        """The logged metrics of a step that is about to be repeated; None for a new step."""
        if step > self.last_step(LogKind.STEP):
            return None
        if step not in self._recorded:
            self._read_back_to(step - 1)
        return self._recorded.get(step)

    def evaluated_ms(self, step: int) -> int | None:
        """When a step newer than the last checkpoint was evaluated, in milliseconds since 1970, as the log says; None
        without an evaluation."""
        return self._evaluated.get(step)

    def sync(self) -> None:
        """Flush the log to the disk itself, as it must be before a checkpoint of these steps is committed: they are not
        repeated after a power failure.

        Raises:
            StorageError: the disk refuses.
        """
        if not self._writes:
            return
        with _refusals(self._run):
            os.fsync(self._descriptor)
        if not self._is_lost():
            self._seals.close_stretch()

    def close(self) -> None:
        """Close the file and have its unsent rest sent, for half a minute at most. Entries were written when they were
        logged. Closing twice is closing once."""
        if self._descriptor >= 0:
            with suppress(StorageError):
                self.sync()
            os.close(self._descriptor)
            self._descriptor = -1
        while self.senders:
            if unsent := self.senders.pop(0).close():
                # A disk that is full must not hide why the run ended.
                with suppress(StorageError):
                    self._run.record_event(Event.TRACKING_BEHIND, message=unsent)

    def _append(self, line: bytes) -> bool:
        if not self._writes or self._is_lost():
            return False
        # One call for one line, and no buffer: a kill leaves nothing in memory, and a failed write nothing to come.
        with _refusals(self._run):
            try:
                written = os.write(self._descriptor, line)
                while written < len(line):
                    written += os.write(self._descriptor, line[written:])
            except BaseException:
                os.ftruncate(self._descriptor, self._size)
                raise
        self._size += len(line)
        self._seals.add(line)
        return True

    def _drop_torn_line(self) -> int:
        """Cut off a last line that a killed process left unfinished; returns the bytes that are left."""
        size = end = os.fstat(self._descriptor).st_size
        whole = 0
        while end and not whole:
            start = max(0, end - (1 << 16))
            whole = os.pread(self._descriptor, end - start, start).rfind(b"\n") + 1
            whole, end = (start + whole if whole else 0), start
        if whole != size:
            os.ftruncate(self._descriptor, whole)
        return whole

    def _read_back_to(self, step: int) -> None:
        """Read the log backwards down to `step`: everything after it, and its own entries but for its metrics.

        A step's metrics are its first entry: all other entries with its number, or a higher one, come after them.
        """
        for entry in entries_backwards(self._run):
            kind, number, data = entry["kind"], entry["step"], entry["data"]
            self._last[kind] = max(number, self._last.get(kind, -1))
            if kind == LogKind.HELD_OUT:
                self._evaluated[number] = entry["time_ms"]
            if kind != LogKind.STEP:
                self._events.add(encode(kind, number, 0, data))
                continue
            if number <= step:
                return
            self._recorded[number] = data


@contextmanager
def _refusals(run: RunDirectory) -> Iterator[None]:
    """Raise a refusal of the file system as a StorageError that names the parts of the run that are kept."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot write {run.log}: {error.strerror}.",
            kept="the run up to its last checkpoint, and every line that is in the log",
            next_step=f"make room, or give permission, then: cloze resume {run.typed}",
        ) from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
