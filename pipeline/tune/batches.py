"""The examples of each update, and their padding to arrays of one length.

The order is a pure function of (seed, epoch), without state between updates. A global batch is cut into a fixed list of
micro-batches, which are distributed over the processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from data_prep.ragged import Ragged
from pipeline.samples.noise import Noise


def example_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """int64 [num_examples]: the numbers of the examples of an epoch, shuffled."""
    return Noise.of("finetune-order", seed, epoch).permutation(num_examples)


def sample_examples(num_examples: int, limit: int | None) -> np.ndarray:
    """int64: the numbers of the used examples, ascending: all, or a fixed random sample of `limit`."""
    if limit is None or limit >= num_examples:
        return np.arange(num_examples)
    return np.sort(Noise.of("finetune-sample").permutation(num_examples)[:limit])


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """The cut of examples into updates, and of updates into micro-batches."""

    num_examples: int
    epochs: int
    batch_size: int
    micro_batch_size: int
    seed: int

    @property
    def updates_per_epoch(self) -> int:
        """The last update of an epoch may have fewer examples."""
        return math.ceil(self.num_examples / self.batch_size)

    @property
    def num_updates(self) -> int:
        """Updates of the whole training."""
        return self.epochs * self.updates_per_epoch

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """The examples of each update of an epoch, int64 arrays; together every example once."""
        order = example_order(self.seed, epoch, self.num_examples)
        return [order[first : first + self.batch_size] for first in range(0, len(order), self.batch_size)]

    def micro_batches(self, batch: np.ndarray) -> list[np.ndarray]:
        """A batch cut into micro-batches of at most `micro_batch_size` examples."""
        return [
            batch[first : first + self.micro_batch_size]
            for first in range(0, len(batch), self.micro_batch_size)
        ]


def pad_rows(
    rows: Ragged, numbers: np.ndarray, fill: int, *, left: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows of different lengths on the right, or on the left.

    Args:
        rows: int64 values.
        numbers: int64 [batch]: the rows to take.
        fill: the padding value.

    Returns:
        int64 [batch, length of the longest], and bool of the same shape that is true at elements of the rows.
    """
    chosen = rows.take(numbers)
    place, lengths = np.arange(chosen.lengths.max()), chosen.lengths[:, None]
    present = place >= len(place) - lengths if left else place < lengths
    padded = np.full(present.shape, fill, dtype=np.int64)
    padded[present] = chosen.values
    return padded, present
