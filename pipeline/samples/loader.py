"""The micro-batches of each step, shared out over ranks, prepared ahead by a thread.

The global batch of a data step is a range of samples, cut into a fixed list of micro-batches (`BatchPlan`): a function
of the step and of the configuration, never of the number of workers. If an objective turns samples into texts of
different lengths, the samples of a step are sorted by length, so that the rows of a micro-batch need little padding.
Rank `r` of `W` takes every W-th micro-batch, from the r-th on: which ones exist does not depend on W.

A run may have phases, each with its own samples (of another length or mixture), which are counted from the phase's
first step. The loader's whole state is the index of the next step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Generic, TypeVar

import numpy as np

from pipeline.samples.batch_plan import BatchPlan
from pipeline.samples.dataset import TokenDataset
from pipeline.samples.packed import Packed

BatchT = TypeVar("BatchT")
_PREFETCHED_STEPS = 2

Lengths = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""The length of each sample's text, from `Packed.sample_ids`, `Packed.epochs` and the length of a row."""


@dataclass(frozen=True, slots=True)
class Step(Generic[BatchT]):
    """The micro-batches that a rank reads for an update."""

    update: int
    data_step: int
    """Index of the global batch; differs from the update's index after data was skipped."""
    micro_batches: dict[int, BatchT]
    """By index in the step."""


def sorted_by_length(dataset: TokenDataset, samples: np.ndarray, lengths: Lengths) -> np.ndarray:
    """The indices of samples in the order of their lengths."""
    return samples[
        np.argsort(lengths(*dataset.identify(samples), dataset.sampling.sequence_length), kind="stable")
    ]


class StepLoader(Generic[BatchT]):
    """Yields this rank's micro-batches step after step; a thread stays two steps ahead."""

    def __init__(
        self,
        phases: Sequence[tuple[int, TokenDataset]],
        plan: BatchPlan,
        corrupt: Callable[[Packed], BatchT],
        *,
        rank: int,
        world_size: int,
        lengths: Lengths | None = None,
    ) -> None:
        """
        Args:
            phases: first step and samples of every phase, ascending from step 0.
            lengths: the samples of a step are sorted by them; None leaves samples in their order.
        """
        self._phases = phases
        self._plan = plan
        self._corrupt = corrupt
        self._rank, self._world_size = rank, world_size
        self._lengths = lengths
        self._sorted: tuple[int | None, np.ndarray] = (None, np.empty(0, dtype=np.int64))

    def prepare(self, data_step: int) -> None:
        """Begin, in the background, to make the index of the epoch that a step reads."""
        first, dataset = self.phase(data_step)
        dataset.prepare(self._plan.samples_between(first, data_step))

    def load(self, data_step: int) -> dict[int, BatchT]:
        """This rank's micro-batches of one step, by index."""
        numbers = range(self._rank, self._plan.num_micro_batches(data_step), self._world_size)
        return {number: self.micro_batch(data_step, number) for number in numbers}

    def micro_batch(self, data_step: int, number: int) -> BatchT:
        """One micro-batch of a step, whichever rank it belongs to."""
        _, dataset = self.phase(data_step)
        return self._corrupt(dataset.batch(self.samples(data_step, number)))

    def samples(self, data_step: int, number: int) -> np.ndarray:
        """int64 [micro_batch_size]: the sample indices of a micro-batch, counted from the start of the phase."""
        first, dataset = self.phase(data_step)
        if self._lengths is None:
            return self._plan.samples(data_step, number, since=first)
        if self._sorted[0] != data_step:
            begin = self._plan.samples_between(first, data_step)
            numbers = np.arange(begin, begin + self._plan.samples_at(data_step))
            self._sorted = data_step, sorted_by_length(dataset, numbers, self._lengths)
        return np.split(self._sorted[1], self._plan.num_micro_batches(data_step))[number]

    def phase(self, data_step: int) -> tuple[int, TokenDataset]:
        """First step and samples of the phase of a data step."""
        return self._phases[bisect_right(self._phases, data_step, key=itemgetter(0)) - 1]

    def steps(
        self, first: int, last: int, data_step_of: Callable[[int], int] = lambda update: update
    ) -> Generator[Step[BatchT], None, None]:
        """This rank's micro-batches for the updates `first <= update < last`; an error in the thread is raised here.

        Args:
            data_step_of: the data step that an update reads.
        """
        updates, coming = iter(range(first, last)), deque[tuple[int, int, Future[dict[int, BatchT]]]]()
        with ThreadPoolExecutor(1, thread_name_prefix="step-loader") as thread:
            try:
                while True:
                    for update in islice(updates, 1 + _PREFETCHED_STEPS - len(coming)):
                        data_step = data_step_of(update)
                        coming.append((update, data_step, thread.submit(self.load, data_step)))
                    if not coming:
                        return
                    update, data_step, loaded = coming.popleft()
                    yield Step(update, data_step, loaded.result())
            finally:
                for _, _, loaded in coming:
                    loaded.cancel()
