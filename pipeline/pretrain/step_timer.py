"""Times of the parts of a step, and a profile of some steps: torch's trace and torch's table.

    RUN/profile/
        rank-0-steps-10-12.json   Chrome trace, for https://ui.perfetto.dev or chrome://tracing
        rank-0-steps-10-12.txt    torch's table of operators and of the parts of a step (`cloze.part forward`), the
                                  longest first

The trainer marks the parts. Collectives (`gloo:`, `nccl:`) run inside of them, mostly inside `backward` and
`optimizer`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from cluster.artefacts.manifest import write_durably
from pipeline.run.events import Event
from pipeline.run.settings import ProfileConfig

MAX_PROFILED_RANKS = 8
"""Ranks from this number on are not profiled: they do the same work, and a trace has tens of megabytes."""
_STEP, _PART = "cloze.step", "cloze.part "


class StepTimer:
    """Times the steps of a rank; `whole_s`, `waiting_s` (for data) and `busy_s` are seconds of the last step that
    ended."""

    whole_s: float
    waiting_s: float
    busy_s: float
    """For data and in the network's forward pass: the part that does not wait for other ranks."""

    def __init__(
        self,
        device: torch.device,
        config: ProfileConfig | None,
        directory: Path,
        rank: int,
        record: Callable[..., object] = lambda event, **details: None,
    ) -> None:
        """
        Args:
            config: the steps to profile.
            directory: for the files above.
            record: takes an event `profiled`, or `profile-failed`, after the last step; called on rank 0 alone.
        """
        chosen = None if config is None or rank >= MAX_PROFILED_RANKS else config
        self._first, self._last = (0, 0) if chosen is None else chosen.steps
        self._directory, self._rank, self._record = directory, rank, record
        self._profile: profile | None = None
        self._step: record_function | None = None
        self._profiled: list[int] = []
        self._is_cuda = device.type == "cuda"
        self._mark = self._started = time.perf_counter()
        self._spent_s = defaultdict[str, float](float)
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start_step(self, update: int) -> None:
        """Begin the step of an update, before waiting for its data."""
        self._end_profiled_step()
        if self._first <= update < self._last:
            if self._profile is None:
                cuda = [ProfilerActivity.CUDA] if self._is_cuda else []
                self._profile = profile(activities=[ProfilerActivity.CPU, *cuda])
                self._profile.start()
            self._profiled.append(update)
            self._step = record_function(_STEP)
            self._step.__enter__()
        elif self._profile is not None:
            self.close()
        self._spent_s.clear()
        self._events.clear()
        self._started = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part of the step, and mark it in the profile: `with timer.part("forward"): ...`."""
        started = time.perf_counter()
        with nullcontext() if self._profile is None else record_function(_PART + name):
            if self._is_cuda and name == "forward":
                # The GPU is asked for its time only when the step has ended.
                first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                first.record()
                yield
                last.record()
                self._events.append((first, last))
            else:
                yield
                self._spent_s[name] += time.perf_counter() - started

    def end_step(self) -> None:
        """End the step. A GPU must have finished it."""
        on_gpu_s = sum(first.elapsed_time(last) for first, last in self._events) / 1000
        self.whole_s = time.perf_counter() - self._started
        self.waiting_s = self._spent_s["data"]
        self.busy_s = self.waiting_s + self._spent_s["forward"] + on_gpu_s

    def since_last(self) -> float:
        """Seconds since the last call, or since the beginning."""
        now = time.perf_counter()
        passed, self._mark = now - self._mark, now
        return passed

    def close(self) -> None:
        """Write the profile, if one was begun; to be called when training ends, with or without an error."""
        if self._profile is None:
            return
        self._end_profiled_step()
        measured, self._profile = self._profile, None
        measured.stop()
        name = f"rank-{self._rank}-steps-{self._profiled[0]}-{self._profiled[-1] + 1}"
        self._profiled = []
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            measured.export_chrome_trace(str(self._directory / f"{name}.json"))
            longest = "cuda_time_total" if self._is_cuda else "cpu_time_total"
            table = measured.key_averages().table(sort_by=longest, row_limit=-1)
            write_durably(self._directory / f"{name}.txt", table.encode())
        except (OSError, RuntimeError) as error:
            # A profile is a diagnostic: failing to write it must not end a run.
            event, details = Event.PROFILE_FAILED, {"message": str(error)[:2000]}
        else:
            event, details = Event.PROFILED, {"table": str(self._directory / f"{name}.txt")}
        if self._rank == 0:
            self._record(event, **details)

    def _end_profiled_step(self) -> None:
        if self._step is not None:
            if self._is_cuda:
                # A step ends with its kernels, so that none of them is counted in the next one.
                torch.cuda.synchronize()
            self._step.__exit__(None, None, None)
            self._step = None
