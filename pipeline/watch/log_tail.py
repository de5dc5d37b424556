"""The newest entry of every kind in a run's log, followed as the log grows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.run.directory import RunDirectory
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.lines import decode, lines_backwards, log_size, read_new

WATCHED = frozenset(
    {LogKind.STEP, LogKind.HELD_OUT, LogKind.SYSTEM, LogKind.RANKS, LogKind.SAVING, LogKind.CHECKPOINT}
)
_SEARCHED_BYTES = 64 << 20
"""How far back the first look goes for kinds that are rare, or that the log may not have at all."""
_LONGEST_LINE_BYTES = 1 << 20
_KIND = re.compile(rb'"kind": ?"([^"]*)"')


class LogTail:
    """The newest entries of one log. The first look reads its end, each later one what was added."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._offset = 0
        """Bytes that were looked at; 0 before the first look."""
        self._newest: dict[str, Mapping[str, Any]] = {}

    def read(self) -> Mapping[str, Mapping[str, Any]]:
        """The newest entry of each kind of WATCHED that the log has, as `decode` gives it."""
        if not 0 < self._offset <= log_size(self._run):
            # The first look, or a log that was replaced. What is added meanwhile is read twice.
            self._offset = _bytes_of_whole_lines(self._run.log)
            self._newest = _search(self._run.log)
        entries, self._offset = read_new(self._run, self._offset)
        self._newest |= {entry["kind"]: entry for entry in entries if entry["kind"] in WATCHED}
        return self._newest


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
