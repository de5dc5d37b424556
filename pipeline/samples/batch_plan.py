"""The samples of each step, the micro-batches that they are cut into, and the tokens that a run reads.

All are functions of the step and of the configuration, never of the number of workers. What watches a run imports this
without the loader's libraries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The global batches of a run."""

    samples_per_step: int
    """Samples of a step after the warm-up of the batch size."""
    micro_batch_size: int
    warmup: tuple[tuple[int, int], ...] = ()
    """(steps, samples per step) of each stage of the warm-up, one after the other from step 0."""

    def samples_at(self, step: int) -> int:
        return self.samples_between(step, step + 1)

    def num_micro_batches(self, step: int) -> int:
        """Micro-batches of a step, over all ranks."""
        return self.samples_at(step) // self.micro_batch_size

    def samples_between(self, first: int, last: int) -> int:
        """Samples of the steps `first <= step < last`."""
        return self._samples_before(last) - self._samples_before(first)

    def samples(self, step: int, micro_batch: int, *, since: int = 0) -> np.ndarray:
        """int64 [micro_batch_size]: the sample indices of a micro-batch, counted from step `since`."""
        first = self.samples_between(since, step) + micro_batch * self.micro_batch_size
        return np.arange(first, first + self.micro_batch_size)

    def steps_of(self, samples: np.ndarray, *, since: int = 0) -> np.ndarray:
        """int64: the steps that read samples, counted from step `since`; the inverse of `samples`."""
        ends, step, total = [], 0, 0
        for steps, each in (*self.warmup, (0, self.samples_per_step)):
            ends.append((step, total, each))
            step, total = step + steps, total + steps * each
        firsts, befores, sizes = (np.array(column, dtype=np.int64) for column in zip(*ends, strict=True))
        places = np.asarray(samples, dtype=np.int64) + self._samples_before(since)
        stage = np.searchsorted(befores, places, side="right") - 1
        return firsts[stage] + (places - befores[stage]) // sizes[stage]

    def _samples_before(self, step: int) -> int:
        total = 0
        for steps, samples in self.warmup:
            total += min(step, steps) * samples
            step = max(0, step - steps)
        return total + step * self.samples_per_step


UNBOUNDED_STEPS = 10**9
"""Steps of a run that only its time budget ends."""


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """Samples and sequence lengths by step."""

    batches: BatchPlan
    """Samples of every step."""
    sequence_length: int
    """Tokens per sample after the phases."""
    phases: tuple[tuple[int, int], ...]
    """(steps, tokens per sample) of each phase, one after the other from step 0 on."""
    steps: int | None
    """Steps that the configuration gives; None where only a budget says how long the run is."""
    token_budget: int | None
    """The run ends after so many tokens."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TokenPlan:
        """The plan of a configuration as plain data: its `batch`, `steps` and `budget`."""
        batch = settings["batch"]
        length = batch["sequence_length"]
        warmup = tuple((stage["steps"], stage["samples"]) for stage in batch.get("warmup") or ())
        return cls(
            batches=BatchPlan(batch["samples"], batch["micro_batch_size"], warmup),
            sequence_length=length,
            phases=tuple(
                (phase["steps"], phase.get("sequence_length") or length)
                for phase in batch.get("phases") or ()
            ),
            steps=settings.get("steps"),
            token_budget=(settings.get("budget") or {}).get("tokens"),
        )

    @property
    def num_steps(self) -> int:
        """Updates of the whole run; UNBOUNDED_STEPS where only its time ends it."""
        bounds = [self.steps or UNBOUNDED_STEPS]
        if self.token_budget is not None:
            # The fewest steps that read so many tokens.
            bounds.append(bisect_left(range(self.token_budget), self.token_budget, key=self.tokens_before))
        return min(bounds)

    def sequence_length_at(self, step: int) -> int:
        """Tokens per sample at a step."""
        for steps, length in self.phases:
            if step < steps:
                return length
            step -= steps
        return self.sequence_length

    def tokens_before(self, step: int) -> int:
        """Tokens of text, before noise, that the steps before `step` read."""
        total, first = 0, 0
        for steps, length in self.phases:
            last = min(step, first + steps)
            if last > first:
                total += length * self.batches.samples_between(first, last)
            first += steps
        if step > first:
            total += self.sequence_length * self.batches.samples_between(first, step)
        return total
