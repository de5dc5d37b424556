"""A profile of some steps: a trace to look into, and a table of what the parts of a step take.

    RUN/profile/
        rank-0-steps-10-12.json         Chrome trace, for https://ui.perfetto.dev or chrome://tracing
        rank-0-steps-10-12.parts.json   a row for every part of every step
        rank-0-steps-10-12.parts.txt    the same to read

Parts are marked by the trainer. Communication lies inside of them, mostly inside `backward` and `optimizer`; it is
known by the names of c10d's, gloo's and NCCL's events.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import orjson
import torch
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from cluster.artefacts.manifest import write_durably
from pipeline.engine.device import trains_on_cuda
from pipeline.runs.settings import ProfileConfig

MAX_PROFILED_RANKS = 8
"""Ranks from this number on are not profiled: they do what these do, and a trace has tens of megabytes."""
_STEP, _PART = "cloze.step ", "cloze.part "
_COMMUNICATION = ("c10d::", "gloo:", "nccl", "record_param_comms")
_OTHER = "other"
_INACTIVE = nullcontext()

Interval = tuple[float, float]
"""Beginning and end, in microseconds of the trace."""


class _Record(Protocol):
    def __call__(self, event: str, **details: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class PartTime:
    """What one part of one step took on this rank."""

    step: int
    part: str
    """As the trainer marked it; `other` is the step's time outside of all parts."""
    wall_s: float
    """All stretches of the part together."""
    share: float
    """Of the step's time."""
    communication_s: float
    """Of these seconds, those in which a collective was under way."""
    device_s: float
    """Seconds of kernels on the GPU that were launched in the part; 0 on CPUs, where all is wall time."""


class StepProfiler:
    """Profiles the configured steps of a rank; does nothing, at next to no cost, in all others."""

    def __init__(
        self,
        config: ProfileConfig | None,
        directory: Path,
        rank: int,
        record: _Record = lambda event, **details: None,
    ) -> None:
        """
        Args:
            directory: what is measured is written there.
            record: takes an event `profiled`, or `profile-failed`, once the steps are over; rank 0 alone calls it.
        """
        chosen = None if config is None or rank >= MAX_PROFILED_RANKS else config
        self._first, self._last = (0, 0) if chosen is None else chosen.steps
        self._directory, self._rank, self._record = directory, rank, record
        self._profile: profile | None = None
        self._step: record_function | None = None
        self._steps: list[int] = []

    def step(self, update: int) -> None:
        """Say that an update begins, before its data is waited for."""
        if self._profile is None and not self._first <= update < self._last:
            return
        self._end_step()
        if not self._first <= update < self._last:
            self.close()
            return
        if self._profile is None:
            self._profile = profile(activities=_activities())
            self._profile.start()
        self._steps.append(update)
        self._step = record_function(f"{_STEP}{update}")
        self._step.__enter__()

    def part(self, name: str) -> AbstractContextManager[Any]:
        """Marks a part of the step: `with profiler.part("forward"): ...`."""
        return _INACTIVE if self._profile is None else record_function(_PART + name)

    def close(self) -> None:
        """Write what was measured; to be called when training ends, however it does."""
        if self._profile is None:
            return
        self._end_step()
        measured, self._profile = self._profile, None
        measured.stop()
        name = f"rank-{self._rank}-steps-{self._steps[0]}-{self._steps[-1] + 1}"
        self._steps = []
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            _write(self._directory / name, measured)
        except (OSError, RuntimeError) as error:
            # A profile is for looking at: that it cannot be written is no reason to end a run.
            self._tell("profile-failed", message=str(error)[:2000])
            return
        self._tell("profiled", table=str(self._directory / f"{name}.parts.txt"))

    def _end_step(self) -> None:
        if self._step is not None:
            _synchronize()
            self._step.__exit__(None, None, None)
            self._step = None

    def _tell(self, event: str, **details: Any) -> None:
        if self._rank == 0:
            self._record(event, **details)


def part_times(events: Iterable[Any]) -> list[PartTime]:
    """The table of a profile.

    Args:
        events: `torch.autograd.profiler_util.FunctionEvent`s with the marks of a StepProfiler among them.
    """
    events = list(events)
    marks = [event for event in events if event.name.startswith((_STEP, _PART))]
    on_host = [event for event in events if _is_on_host(event)]
    communication = _union(_interval(event) for event in events if event.name.startswith(_COMMUNICATION))
    kernels = [(event.time_range.start, sum(own.duration for own in event.kernels)) for event in on_host]
    kernels = [(start, duration) for start, duration in kernels if duration]
    rows = []
    for mark in marks:
        if mark.name.startswith(_STEP) and _is_on_host(mark):
            step, whole = int(mark.name.removeprefix(_STEP)), _interval(mark)
            parts = _parts_within(whole, (event for event in marks if _is_on_host(event)))
            rows += _rows(step, whole, parts, communication, kernels)
    return sorted(rows, key=lambda row: row.step)


def _rows(
    step: int,
    whole: Interval,
    parts: dict[str, list[Interval]],
    communication: Sequence[Interval],
    kernels: Sequence[tuple[float, float]],
) -> list[PartTime]:
    marked = _union(interval for own in parts.values() for interval in own)
    parts = {**parts, _OTHER: _without(whole, marked)}
    length = _length([whole])
    return [
        PartTime(
            step=step,
            part=name,
            wall_s=_length(own) / 1e6,
            share=_length(own) / length,
            communication_s=_length(_common(own, communication)) / 1e6,
            device_s=sum(time for start, time in kernels if any(a <= start < b for a, b in own)) / 1e6,
        )
        for name, own in parts.items()
    ]


def _parts_within(whole: Interval, marks: Iterable[Any]) -> dict[str, list[Interval]]:
    """The stretches of every part in a step, by the order in which they first come."""
    found: dict[str, list[Interval]] = {}
    for mark in sorted(marks, key=lambda event: event.time_range.start):
        if mark.name.startswith(_PART) and whole[0] <= mark.time_range.start < whole[1]:
            found.setdefault(mark.name.removeprefix(_PART), []).append(_interval(mark))
    return {name: _union(own) for name, own in found.items()}


def table_text(rows: Sequence[PartTime]) -> str:
    """The table as people read it: the parts of all steps together, then those of every step."""
    from rich.console import Console
    from rich.table import Table

    steps = sorted({row.step for row in rows})
    whole_s = sum(row.wall_s for row in rows)
    table = Table(title=f"parts of steps {steps[0]} to {steps[-1]}", title_justify="left")
    table.add_column("part")
    for column in (
        "ms per step",
        "share",
        "in collectives, ms",
        "on the GPU, ms",
        *(f"step {n}, ms" for n in steps),
    ):
        table.add_column(column, justify="right")
    for name in dict.fromkeys(row.part for row in rows):
        own = [row for row in rows if row.part == name]
        by_step = {row.step: row.wall_s for row in own}
        table.add_row(
            name,
            _milliseconds(sum(row.wall_s for row in own) / len(steps)),
            f"{sum(row.wall_s for row in own) / whole_s:.1%}",
            _milliseconds(sum(row.communication_s for row in own) / len(steps)),
            _milliseconds(sum(row.device_s for row in own) / len(steps)),
            *(_milliseconds(by_step.get(step, 0.0)) for step in steps),
        )
    text = StringIO()
    Console(file=text, width=110 + 14 * len(steps)).print(table)
    return text.getvalue()


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.2f}"


def _write(stem: Path, measured: profile) -> None:
    measured.export_chrome_trace(f"{stem}.json")
    rows = part_times(measured.events() or ())
    write_durably(
        stem.with_name(f"{stem.name}.parts.json"),
        orjson.dumps([asdict(row) for row in rows], option=orjson.OPT_INDENT_2),
    )
    write_durably(stem.with_name(f"{stem.name}.parts.txt"), table_text(rows).encode())


def _activities() -> list[ProfilerActivity]:
    cuda = [ProfilerActivity.CUDA] if trains_on_cuda() else []
    return [ProfilerActivity.CPU, *cuda]


def _synchronize() -> None:
    """Let a step end when its kernels do, so that none of them is counted in the next one."""
    if trains_on_cuda():
        torch.cuda.synchronize()


def _is_on_host(event: Any) -> bool:
    return event.device_type == DeviceType.CPU


def _interval(event: Any) -> Interval:
    return event.time_range.start, event.time_range.end


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same stretches without overlaps, ascending."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _common(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """What lies in both of two unions."""
    found, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def _without(whole: Interval, marked: Sequence[Interval]) -> list[Interval]:
    """What is left of a stretch outside of a union."""
    edges = [whole[0], *(edge for own in _common([whole], marked) for edge in own), whole[1]]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
