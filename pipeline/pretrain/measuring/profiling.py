"""A profile of some steps: torch's trace and torch's tables, with the parts of a step marked in them.

    RUN/profile/
        rank-0-steps-10-12.json           Chrome trace, for https://ui.perfetto.dev or chrome://tracing
        rank-0-steps-10-12.parts.json     seconds of every part of the profiled steps
        rank-0-steps-10-12.parts.txt      the same as a table
        rank-0-steps-10-12.operators.txt  torch's table of operators, the slowest first

The trainer marks the parts. Collectives run inside of them, mostly inside `backward` and `optimizer`; the table names
them on a line of their own.
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
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from cluster.artefacts.manifest import write_durably
from pipeline.engine.device import trains_on_cuda
from pipeline.runs.events import Event
from pipeline.runs.settings import ProfileConfig

MAX_PROFILED_RANKS = 8
"""Ranks from this number on are not profiled: they do the same work, and a trace has tens of megabytes."""
COLLECTIVES, OTHER = "in collectives", "other"
_STEP, _PART = "cloze.step", "cloze.part "
_COLLECTIVE = ("gloo:", "nccl:")
_LISTED_OPERATORS = 50
_INACTIVE = nullcontext()


class _Record(Protocol):
    def __call__(self, event: Event, **details: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class PartTime:
    """Time of one part of the profiled steps on this rank."""

    part: str
    """As the trainer marked it; `other` is outside of all parts, `in collectives` lies inside of them."""
    calls: int
    wall_s: float
    """Seconds over all profiled steps."""
    share: float
    """Of the time of the profiled steps."""
    device_s: float
    """Seconds of GPU kernels that were launched in the part; 0 on CPUs."""


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
            directory: for the files above.
            record: takes an event `profiled`, or `profile-failed`, after the last step; called on rank 0 alone.
        """
        chosen = None if config is None or rank >= MAX_PROFILED_RANKS else config
        self._first, self._last = (0, 0) if chosen is None else chosen.steps
        self._directory, self._rank, self._record = directory, rank, record
        self._profile: profile | None = None
        self._step: record_function | None = None
        self._steps: list[int] = []

    def step(self, update: int) -> None:
        """Begin the step of an update, before waiting for its data."""
        if self._profile is None and not self._first <= update < self._last:
            return
        self._end_step()
        if not self._first <= update < self._last:
            self.close()
            return
        if self._profile is None:
            cuda = [ProfilerActivity.CUDA] if trains_on_cuda() else []
            self._profile = profile(activities=[ProfilerActivity.CPU, *cuda])
            self._profile.start()
        self._steps.append(update)
        self._step = record_function(_STEP)
        self._step.__enter__()

    def part(self, name: str) -> AbstractContextManager[Any]:
        """Mark a part of the step: `with profiler.part("forward"): ...`."""
        return _INACTIVE if self._profile is None else record_function(_PART + name)

    def close(self) -> None:
        """Write the profile, if one was begun; to be called when training ends, with or without an error."""
        if self._profile is None:
            return
        self._end_step()
        measured, self._profile = self._profile, None
        measured.stop()
        name = f"rank-{self._rank}-steps-{self._steps[0]}-{self._steps[-1] + 1}"
        title = f"parts of steps {self._steps[0]} to {self._steps[-1]}"
        self._steps = []
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            _write(self._directory / name, title, measured)
        except (OSError, RuntimeError) as error:
            # A profile is a diagnostic: failing to write it must not end a run.
            self._tell(Event.PROFILE_FAILED, message=str(error)[:2000])
            return
        self._tell(Event.PROFILED, table=str(self._directory / f"{name}.parts.txt"))

    def _end_step(self) -> None:
        if self._step is not None:
            if trains_on_cuda():
                # A step ends with its kernels, so that none of them is counted in the next one.
                torch.cuda.synchronize()
            self._step.__exit__(None, None, None)
            self._step = None

    def _tell(self, event: Event, **details: Any) -> None:
        if self._rank == 0:
            self._record(event, **details)


def part_times(averages: Iterable[Any]) -> list[PartTime]:
    """The parts of a profile, in the order of their time, then `other` and `in collectives`.

    Args:
        averages: `torch.profiler.profile.key_averages()`, the marks of a StepProfiler among them.
    """
    averages = list(averages)
    whole_us = sum(event.cpu_time_total for event in averages if event.key == _STEP)

    def row(part: str, events: Sequence[Any]) -> PartTime:
        wall_us = sum(event.cpu_time_total for event in events)
        return PartTime(
            part=part,
            calls=sum(event.count for event in events),
            wall_s=wall_us / 1e6,
            share=wall_us / whole_us,
            device_s=sum(event.device_time_total for event in events) / 1e6,
        )

    # On GPUs a mark has a second event for its stretch on the device, without time on the host.
    marked = {event.key for event in averages if event.key.startswith(_PART) and event.cpu_time_total}
    parts = [
        row(key.removeprefix(_PART), [event for event in averages if event.key == key]) for key in marked
    ]
    rest_us = whole_us - 1e6 * sum(part.wall_s for part in parts)
    other = PartTime(OTHER, 0, rest_us / 1e6, rest_us / whole_us, 0.0)
    collectives = row(COLLECTIVES, [event for event in averages if event.key.startswith(_COLLECTIVE)])
    return [*sorted(parts, key=lambda part: -part.wall_s), other, collectives]


def table_text(title: str, rows: Sequence[PartTime]) -> str:
    """The rows as a table for a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("part")
    for column in ("calls", "wall, ms", "share", "on the GPU, ms"):
        table.add_column(column, justify="right")
    for row in rows:
        times = (f"{1000 * row.wall_s:,.2f}", f"{row.share:.1%}", f"{1000 * row.device_s:,.2f}")
        table.add_row(row.part, str(row.calls or ""), *times)
    text = StringIO()
    Console(file=text, width=100).print(table)
    return text.getvalue()


def _write(stem: Path, title: str, measured: profile) -> None:
    measured.export_chrome_trace(f"{stem}.json")
    averages = measured.key_averages()
    rows = part_times(averages)
    plain = orjson.dumps([asdict(row) for row in rows], option=orjson.OPT_INDENT_2)
    slowest = "self_cuda_time_total" if trains_on_cuda() else "self_cpu_time_total"
    operators = averages.table(sort_by=slowest, row_limit=_LISTED_OPERATORS)
    for suffix, data in (
        ("parts.json", plain),
        ("parts.txt", table_text(title, rows).encode()),
        ("operators.txt", operators.encode()),
    ):
        write_durably(stem.with_name(f"{stem.name}.{suffix}"), data)
