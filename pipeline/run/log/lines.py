"""The lines of a run's log, their kinds, and reading them: from an offset on, or backwards from the end.

    {"kind": "train", "step": 7, "time_ms": 1760000000000, "data": {"loss": 2.5, "grad_norm": "Infinity"}}

One line is one entry. NaN and infinities, which JSON lacks, are written as words. A line that a killed process left
unfinished is never returned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event


class LogKind(StrEnum):
    """One kind of line; values are on disk, and never change."""

    STEP = "train"
    """Metrics of a step: every step has exactly one such line, in order."""
    HELD_OUT = "held_out"
    """Metrics of an evaluation."""
    SYSTEM = "system"
    """Processors, memory, disks, network and GPUs of the machines."""
    RANKS = "ranks"
    """Times and memory of the ranks, compared."""
    SAVING = "saving"
    """Duration and size of a save."""
    CHECKPOINT = "checkpoint"
    """A committed checkpoint."""
    FORGET = "forget"
    """Checkpoints that are not there any more."""
    ROLLED_BACK = Event.ROLLED_BACK.value
    """The run continues from this line's step: earlier entries of later steps are void."""
    SPIKE = Event.SPIKE.value
    SKIPPED_UPDATE = Event.SKIPPED_UPDATE.value


METRIC_PREFIXES = {
    LogKind.STEP: "",
    LogKind.HELD_OUT: "held_out_",
    LogKind.SYSTEM: "system/",
    LogKind.RANKS: "ranks/",
    LogKind.SAVING: "saving/",
}
"""Kinds of entries that are metrics, with the prefix of their names in MLflow. `system/` is MLflow's own name for
them: its pages show those apart."""
_NOT_IN_A_KEY = re.compile(r"[^\w\-. :/]")


def key_of(name: str) -> str:
    """A name with the characters that tracking services take."""
    return _NOT_IN_A_KEY.sub("_", name)


def numbers_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a log entry by their names in tracking services."""
    prefix = METRIC_PREFIXES.get(entry["kind"], f"{entry['kind']}/")
    return {
        key_of(f"{prefix}{name}"): float(value)
        for name, value in entry["data"].items()
        if isinstance(value, int | float)
    }


BLOCK_BYTES = 1 << 18
_TAKES_BACK = b'"%s"' % LogKind.ROLLED_BACK.encode()
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(kind: str, step: int, time_ms: int, data: Mapping[str, Any]) -> bytes:
    """An entry as a line."""

    def in_words(value: Any) -> Any:
        # `orjson` would write null for NaN and for infinities.
        if not isinstance(value, float | np.floating) or math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")

    plain = {key: in_words(value) for key, value in data.items()}
    entry = {"kind": kind, "step": step, "time_ms": time_ms, "data": plain}
    return orjson.dumps(entry, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; None for a line without one, such as the zeros that a power failure leaves in a file."""
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(entry, dict) or not {"kind", "step", "time_ms", "data"} <= entry.keys():
        return None
    data = entry["data"]
    if not (isinstance(data, dict) and isinstance(entry["step"], int)):
        return None
    for key, value in data.items():
        if isinstance(value, str) and value in _WORDS:
            data[key] = _WORDS[value]
    return entry


def entries_from(run: RunDirectory, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Complete entries from byte `offset` on, each with the offset after it; reads no further than it is asked."""
    path = run.log
    if not path.exists():
        return
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            if (entry := decode(line)) is not None:
                yield entry, offset


def entries_backwards(run: RunDirectory, part: bytes = b"") -> Iterator[dict[str, Any]]:
    """All complete entries, except those of steps undone by a later rollback, the newest first; reads no further back
    than it is asked.

    Args:
        part: only entries whose lines have these bytes, which is fast.
    """
    last = math.inf
    for line in lines_backwards(run.log):
        if part not in line and _TAKES_BACK not in line:
            continue
        if (entry := decode(line)) is None or entry["step"] > last:
            continue
        if entry["kind"] == LogKind.ROLLED_BACK:
            last = entry["step"]
        yield entry


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Whole lines of a file without their line breaks, the newest first; reads no further back than it is asked."""
    if not path.exists():
        return
    with path.open("rb") as stream:
        end = stream.seek(0, 2)
        head, torn = b"", True
        while end:
            start = max(0, end - BLOCK_BYTES)
            stream.seek(start)
            head, *lines = (stream.read(end - start) + head).split(b"\n")
            end = start
            if lines and torn:
                # After the last line break there is a line that a killed process left unfinished, or nothing.
                lines.pop()
                torn = False
            yield from reversed(lines)
        if not torn:
            yield head


def read_metrics(run: RunDirectory, kind: LogKind = LogKind.STEP) -> list[dict[str, Any]]:
    """The metrics of each logged step, as dicts with `step` added, the oldest first."""
    entries = entries_backwards(run, b'"%s"' % kind.encode())
    return [{"step": entry["step"], **entry["data"]} for entry in entries if entry["kind"] == kind][::-1]


def log_size(run: RunDirectory) -> int:
    """Bytes of the log; 0 when there is none. From this offset, `entries_from` returns only new entries."""
    path = run.log
    return path.stat().st_size if path.exists() else 0
