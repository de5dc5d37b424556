"""Hashes of the log's stretches, so that damage that leaves its lines readable is noticed: `log.seals` beside it.

    {"start": 0, "end": 41230, "xxh3_128": "..."}

A stretch ends where the log is known to be on the disk itself: before a checkpoint, and at the end of an attempt. Lines
that a killed run wrote after the last stretch are in none until it is resumed. A second hashes some GB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import xxhash

from cluster.artefacts.reading import read_bytes
from pipeline.run.directory import RunDirectory

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
        last = next(reversed(_stretches(self._path)), None)
        self._start = 0 if last is None else min(last.end, size)
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


def damage_of_log(run: RunDirectory) -> str:
    """The first damage to a log, in words; empty without any."""
    path = run.log
    size = path.stat().st_size if path.exists() else 0
    for stretch in _stretches(run.log_seals):
        if stretch.end > size:
            return f"it has {size} bytes, and had {stretch.end} when it was sealed"
        digest = xxhash.xxh3_128()
        for block in _blocks(path, stretch.start, stretch.end):
            digest.update(block)
        if digest.hexdigest() != stretch.xxh3_128:
            return f"bytes {stretch.start} to {stretch.end} were altered since they were written"
    return ""


def _stretches(path: Path) -> list[Stretch]:
    found = []
    for line in read_bytes(path).splitlines() if path.exists() else []:
        with suppress(ValueError, TypeError):
            found.append(Stretch(**orjson.loads(line)))
    return found


def _blocks(path: Path, start: int, end: int) -> Iterator[bytes]:
    if end <= start:
        return
    with path.open("rb") as stream:
        stream.seek(start)
        while start < end and (block := stream.read(min(_BLOCK_BYTES, end - start))):
            start += len(block)
            yield block
