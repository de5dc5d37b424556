"""Where the time of a step goes, and for how long the run has trained."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step."""

    whole_s: float
    waiting_s: float
    """For data."""
    busy_s: float
    """For data and in the network's forward pass: the part that does not wait for other ranks."""


class StepClock:
    """Times of one rank."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._mark = self._started = time.perf_counter()
        self._waiting_s = self._forward_s = 0.0

    def start_step(self) -> None:
        """A step begins."""
        self._started = time.perf_counter()
        self._waiting_s = self._forward_s = 0.0
        self._events.clear()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The time inside is spent waiting for data."""
        started = time.perf_counter()
        yield
        self._waiting_s += time.perf_counter() - started

    @contextmanager
    def forward(self) -> Iterator[None]:
        """The time inside is spent in a forward pass; a GPU is asked for it only when the step has ended."""
        if self._is_cuda:
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            yield
            pair[1].record()
            self._events.append(pair)
            return
        started = time.perf_counter()
        yield
        self._forward_s += time.perf_counter() - started

    def end_step(self) -> StepTime:
        """The step that ends now. A GPU must have finished it."""
        forward_s = self._forward_s + sum(first.elapsed_time(last) for first, last in self._events) / 1000
        whole_s = time.perf_counter() - self._started
        return StepTime(whole_s, self._waiting_s, self._waiting_s + forward_s)

    def since_last(self) -> float:
        """Seconds since the last call, or since the beginning."""
        now = time.perf_counter()
        passed, self._mark = now - self._mark, now
        return passed
