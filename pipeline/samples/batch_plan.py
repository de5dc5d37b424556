"""The samples of each step and the micro-batches that they are cut into.

Both are functions of the step and of the configuration, never of the number of workers. What watches a run imports this
without the loader's libraries.
"""

from __future__ import annotations

from dataclasses import dataclass

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
