"""A profile of some steps: torch's trace and torch's table, with the parts of a step marked in them.

    RUN/profile/
        rank-0-steps-10-12.json   Chrome trace, for https://ui.perfetto.dev or chrome://tracing
        rank-0-steps-10-12.txt    torch's table of operators and of the parts of a step (`cloze.part forward`), the
                                  longest first

The trainer marks the parts. Collectives (`gloo:`, `nccl:`) run inside of them, mostly inside `backward` and
`optimizer`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from cluster.artefacts.manifest import write_durably
from pipeline.engine.device import trains_on_cuda
from pipeline.run.events import Event
from pipeline.run.settings import ProfileConfig

MAX_PROFILED_RANKS = 8
"""Ranks from this number on are not profiled: they do the same work, and a trace has tens of megabytes."""
_STEP, _PART = "cloze.step", "cloze.part "
_INACTIVE = nullcontext()


class StepProfiler:
    """Profiles the configured steps of a rank; does nothing, at next to no cost, in all others."""

    def __init__(
        self,
        config: ProfileConfig | None,
        directory: Path,
        rank: int,
        record: Callable[..., object] = lambda event, **details: None,
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
        self._steps = []
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            measured.export_chrome_trace(str(self._directory / f"{name}.json"))
            longest = "cuda_time_total" if trains_on_cuda() else "cpu_time_total"
            table = measured.key_averages().table(sort_by=longest, row_limit=-1)
            write_durably(self._directory / f"{name}.txt", table.encode())
        except (OSError, RuntimeError) as error:
            # A profile is a diagnostic: failing to write it must not end a run.
            event, details = Event.PROFILE_FAILED, {"message": str(error)[:2000]}
        else:
            event, details = Event.PROFILED, {"table": str(self._directory / f"{name}.txt")}
        if self._rank == 0:
            self._record(event, **details)

    def _end_step(self) -> None:
        if self._step is not None:
            if trains_on_cuda():
                # A step ends with its kernels, so that none of them is counted in the next one.
                torch.cuda.synchronize()
            self._step.__exit__(None, None, None)
            self._step = None
