"""Records of finished shards, the log of their making, and the status of running tasks.

A record has rows, tokens, counts, and the inputs that could not be read. The log lies beside the records: speed, worker
and memory of every shard, and the time left. It depends on the machines, so nothing of it enters a manifest. A line is
a start of the stage (`total`, `done`) or a finished shard (`file`). The status of a task is a file beside the shard.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from cluster.artefacts.manifest import FileEntry
from cluster.artefacts.parts import PartRecord, PartRecords
from cluster.artefacts.reading import read_json_lines


@dataclass(frozen=True, slots=True)
class Reject:
    """An input that could not be read."""

    uri: str
    byte_offset: int
    """Offset of the unreadable part in the (decompressed) input."""
    reason: str
    source: str = ""
    """Name of the source that the input belongs to: file names repeat among sources."""

    def __str__(self) -> str:
        of = f" of {self.source}" if self.source else ""
        return f"{self.uri}{of} at byte {self.byte_offset}: {self.reason}"


class ShardRecord(PartRecord):
    """The durable note that a shard is finished."""

    entry: FileEntry
    stats: dict[str, int]
    """Counts that add up over shards."""
    rejects: tuple[Reject, ...]
    notes: tuple[dict[str, Any], ...] = ()
    """A few examples for people to look at, as JSON-like data; they enter no fingerprint."""

    @property
    def part_name(self) -> str:
        """The shard's file name."""
        return self.entry.path

    @property
    def part_files(self) -> tuple[FileEntry, ...]:
        """The shard's only file."""
        return (self.entry,)

    def renamed(self, name: str) -> ShardRecord:
        """The record if the shard's file had another name."""
        return self.model_copy(update={"entry": replace(self.entry, path=name)})

    def slim(self) -> ShardRecord:
        """Without notes; names of counts are shared among records."""
        stats = {sys.intern(name): count for name, count in self.stats.items()}
        return self.model_copy(update={"stats": stats, "notes": ()})


SHARD_RECORDS = PartRecords("shard-records", ShardRecord)


def sum_stats(records: Sequence[ShardRecord]) -> dict[str, int]:
    """The shards' counts added up, with `rows` and (where there are any) `tokens`."""
    totals: dict[str, int] = {"rows": sum(record.entry.rows or 0 for record in records)}
    if any(record.entry.tokens is not None for record in records):
        totals["tokens"] = sum(record.entry.tokens or 0 for record in records)
    for record in records:
        for name, count in record.stats.items():
            totals[name] = totals.get(name, 0) + count
    return totals


LOG_NAME = "shard-log.jsonl"


Effort = dict[str, Any]
"""What one shard took: its `worker` (`HOST:PROCESS`), `seconds`, `processor_seconds` of all threads, and the peak
memory of the worker's process meanwhile, `peak_rss_bytes`."""


@contextmanager
def measure_effort() -> Iterator[Callable[[], Effort]]:
    """Measure the block; yields a function that returns the result, to be called when the work is done."""
    # Linux resets the peak on request; elsewhere it is the peak since the process began.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    started, processed = time.perf_counter(), time.process_time()

    def effort() -> Effort:
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Sandboxes have no such file, or one without the peak.
        with suppress(OSError, IndexError):
            status = Path("/proc/self/status").read_text()
            peak_kib = int(status.partition("VmHWM:")[2].split()[0])
        return {
            "worker": f"{platform.node()}:{os.getpid()}",
            "seconds": round(time.perf_counter() - started, 3),
            "peak_rss_bytes": peak_kib * 1024,
            "processor_seconds": round(time.process_time() - processed, 3),
        }

    yield effort


class ShardLog:
    """Writes the log of one run of `map_shards`, and estimates the time left."""

    def __init__(
        self, directory: Path, stage: str, sizes: Sequence[int], *, done: int = 0, rejects: int = 0
    ) -> None:
        """Begin a run.

        Args:
            sizes: bytes of input of every shard that is to be made; they weigh the estimate of the time left.
            done: shards that were made before.
            rejects: inputs that could not be read in them.
        """
        self._path = directory / LOG_NAME
        self._stage = stage
        self._weights_left = sum(max(size, 1) for size in sizes)
        self._weights_done = self._bytes = self._rows = 0
        self._started = time.perf_counter()
        self._write({"total": done + len(sizes), "done": done, "rejects": rejects})

    def add(
        self, file: str, size: int, num_bytes: int, rows: int, effort: Effort, *, rejects: int = 0
    ) -> None:
        """Note a finished shard.

        Args:
            size: its entry in `sizes`.
            num_bytes: bytes of text that were handled.
            rejects: inputs that could not be read.
        """
        self._weights_done += max(size, 1)
        self._weights_left -= max(size, 1)
        self._bytes += num_bytes
        self._rows += rows
        self._write(
            {
                "file": file,
                "bytes": num_bytes,
                "rows": rows,
                "rejects": rejects,
                "mb_per_s": round(num_bytes / 1e6 / max(effort["seconds"], 1e-3), 2),
                "rows_per_s": round(rows / max(effort["seconds"], 1e-3), 1),
                **effort,
                "seconds_left": round(self.seconds_left, 1),
            }
        )

    @property
    def seconds_left(self) -> float:
        """Estimate of the time until all shards are made."""
        elapsed = time.perf_counter() - self._started
        return elapsed * self._weights_left / max(self._weights_done, 1)

    def __str__(self) -> str:
        elapsed = max(time.perf_counter() - self._started, 1e-3)
        speeds = [f"{self._bytes / 1e6 / elapsed:,.1f} MB/s", f"{self._rows / elapsed:,.0f} rows/s"]
        seconds = self.seconds_left
        duration = f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
        duration = f"{seconds:.0f} s" if seconds < 90 else duration
        left = [f"{duration} left"] if self._weights_left else []
        # For a shard without text, such as a tokenizer, bytes per second mean nothing.
        return ", ".join((speeds if self._bytes else []) + left)

    def _write(self, line: dict[str, Any]) -> None:
        stamped = {"stage": self._stage, "time_s": round(time.time(), 6), **line}
        with self._path.open("ab") as stream:
            stream.write(orjson.dumps(stamped) + b"\n")


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """The progress of a stage since it was last started."""

    stage: str
    done: int
    """Finished shards, with those of earlier starts."""
    total: int
    rows: int
    """Rows of the shards that were finished since the start; so are `text_bytes`."""
    text_bytes: int
    rejects: int
    """Inputs that could not be read, with those of earlier starts."""
    started_s: float
    """Unix time of the start, by the driver's clock; so is `last_s`."""
    last_s: float
    """Unix time of the last finished shard, or of the start before there is one."""
    seconds_left: float | None
    """Estimate at `last_s`; None before a shard is finished."""

    @property
    def bytes_per_s(self) -> float:
        """Bytes of text per second, of all workers together; 0 before a shard is finished."""
        return self.text_bytes / (self.last_s - self.started_s) if self.last_s > self.started_s else 0.0


def read_progress(directory: Path) -> ShardProgress | None:
    """The progress of the artefact in `directory`; None without a log."""
    started: dict[str, Any] | None = None
    shards: list[dict[str, Any]] = []
    for line in read_json_lines(directory / LOG_NAME):
        if "total" in line:
            started, shards = line, []
        elif "file" in line:
            shards.append(line)
    if started is None:
        return None
    last = shards[-1] if shards else {}
    return ShardProgress(
        stage=str(started["stage"]),
        done=started["done"] + len({line["file"] for line in shards}),
        total=started["total"],
        rows=sum(line["rows"] for line in shards),
        text_bytes=sum(line["bytes"] for line in shards),
        rejects=started["rejects"] + sum(line["rejects"] for line in shards),
        started_s=started["time_s"],
        last_s=last.get("time_s", started["time_s"]),
        seconds_left=last.get("seconds_left"),
    )


def summarize_log(directory: Path) -> dict[str, Any]:
    """Totals of an artefact's log, over all workers and for each; empty without a log.

    Returns:
        `shards`, `bytes`, `rows`, `seconds` and `processor_seconds` (of work, added up over workers), `mb_per_s` and
        `rows_per_s` (of one worker), `peak_rss_bytes`, and `workers`: the same by name. A shard that was made twice
        counts twice.
    """
    numbers = ("bytes", "rows", "seconds", "processor_seconds", "peak_rss_bytes")
    # The log has no hash, and may come from a store.
    lines = [
        line
        for line in read_json_lines(directory / LOG_NAME)
        if "file" in line
        and isinstance(line.get("worker"), str)
        and all(isinstance(line.get(key), int | float) for key in numbers)
    ]
    if not lines:
        return {}
    workers = sorted({line["worker"] for line in lines})
    own = {name: _totals([line for line in lines if line["worker"] == name]) for name in workers}
    return _totals(lines) | {"workers": own}


def _totals(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sums = {
        key: sum(line[key] for line in lines) for key in ("bytes", "rows", "seconds", "processor_seconds")
    }
    seconds = max(sums["seconds"], 1e-3)
    return {
        "shards": len(lines),
        **sums,
        "mb_per_s": round(sums["bytes"] / 1e6 / seconds, 2),
        "rows_per_s": round(sums["rows"] / seconds, 1),
        "peak_rss_bytes": max(line["peak_rss_bytes"] for line in lines),
    }


def report_status(path: Path, text: str) -> None:
    """Set the status that is shown while a shard function writes the shard at `path`."""
    status = _status_of(path)
    temporary = status.with_suffix(".new.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, status)


def read_status(directory: Path, file: str = "") -> str:
    """The latest status of the running task of a shard, or of any task of the artefact; empty without one."""
    found = []
    for status in directory.glob(f".{file}.*.status.tmp" if file else ".*.status.tmp"):
        try:
            found.append((status.stat().st_mtime_ns, status.read_text(encoding="utf-8")))
        except OSError:
            # The shard was finished meanwhile.
            continue
    return max(found)[1] if found else ""


def remove_status(path: Path) -> None:
    """Remove the status of the shard at `path`."""
    _status_of(path).unlink(missing_ok=True)


def _status_of(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.tmp')}.status.tmp")
