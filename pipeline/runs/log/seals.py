"""Hashes of the log's stretches, so that damage that leaves its lines readable is noticed: `log.seals` beside it.

    {"start": 0, "end": 41230, "xxh3_128": "..."}

A stretch ends where the log is known to be on the disk itself: before a checkpoint, and at the end of an attempt. Lines
that a killed run wrote after the last stretch are in none until it is resumed. A long log is only read as a whole on
demand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import xxhash

from pipeline.runs.directory import RunDirectory

CHECKED_BYTES = 1 << 24
"""Bytes at the end of the log that a resumption checks."""
_TAIL_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of the log from `start` to `end`, and their hash."""

    start: int
    end: int
    xxh3_128: str


class LogSeals:
    """Hashes a log as it is written, from the end of the last stretch on."""

    def __init__(self, run: RunDirectory, size: int) -> None:
        """
        Args:
            size: bytes of the log.
        """
        self._path = run.log_seals
        last = next(_backwards(self._path), None)
        # The log of an earlier version is in no stretch: from here on it is.
        self._start = size if last is None or last.end > size else last.end
        self._end = size
        self._digest = xxhash.xxh3_128()
        for block in _blocks(run.log, self._start, size):
            self._digest.update(block)

    def add(self, line: bytes) -> None:
        """Hash a line that was written."""
        self._digest.update(line)
        self._end += len(line)

    def close_stretch(self) -> None:
        """End the stretch here, once the log is on the disk. A full disk leaves the stretch open."""
        if self._end == self._start:
            return
        line = orjson.dumps(asdict(Stretch(self._start, self._end, self._digest.hexdigest())))
        with suppress(OSError), self._path.open("ab") as stream:
            # After a line break: the last line of the file may be torn.
            stream.write(b"\n" + line)
            stream.flush()
            os.fsync(stream.fileno())
            self._start, self._digest = self._end, xxhash.xxh3_128()


def damage_of_log(run: RunDirectory, limit_bytes: int | None = CHECKED_BYTES) -> str:
    """The damage to the newest stretches of a log, in words; empty without any.

    Args:
        limit_bytes: check so many bytes at its end, and the rest of the stretch that they begin in; None checks all.
    """
    path = run.log
    size = path.stat().st_size if path.exists() else 0
    checked = 0
    for stretch in _backwards(run.log_seals, None if limit_bytes is None else _TAIL_BYTES):
        if stretch.end > size:
            return f"it has {size} bytes, and had {stretch.end} when it was sealed"
        digest = xxhash.xxh3_128()
        for block in _blocks(path, stretch.start, stretch.end):
            digest.update(block)
        if digest.hexdigest() != stretch.xxh3_128:
            return f"bytes {stretch.start} to {stretch.end} were altered since they were written"
        checked += stretch.end - stretch.start
        if limit_bytes is not None and checked >= limit_bytes:
            break
    return ""


def _backwards(path: Path, tail_bytes: int | None = _TAIL_BYTES) -> Iterator[Stretch]:
    """The stretches in the last `tail_bytes` of the file, the newest first."""
    if not path.exists():
        return
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        start = 0 if tail_bytes is None else max(0, size - tail_bytes)
        stream.seek(start)
        lines = stream.read(size - start).split(b"\n")
    for line in reversed(lines[1:]):
        with suppress(ValueError, TypeError):
            yield Stretch(**orjson.loads(line))


def _blocks(path: Path, start: int, end: int) -> Iterator[bytes]:
    if end <= start:
        return
    with path.open("rb") as stream:
        stream.seek(start)
        while start < end and (block := stream.read(min(_BLOCK_BYTES, end - start))):
            start += len(block)
            yield block
