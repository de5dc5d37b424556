"""Which examples an update learns from, and how they become tensors.

The order is a pure function of (seed, epoch): nothing is remembered between updates. A global batch is cut
into a fixed list of micro-batches which the processes only share out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.batches.noise import Noise
from pipeline.finetune.encoding import EncodedExamples


def example_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """int64 [num_examples]: the examples of an epoch in the order they are learnt from."""
    return Noise.of("finetune-order", seed, epoch).permutation(num_examples)


def sample_examples(num_examples: int, limit: int | None) -> np.ndarray:
    """int64: the examples that are used, ascending: all, or a fixed random `limit` of them."""
    if limit is None or limit >= num_examples:
        return np.arange(num_examples)
    return np.sort(Noise.of("finetune-sample").permutation(num_examples)[:limit])


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How the examples are cut into updates, and updates into micro-batches."""

    num_examples: int
    epochs: int
    batch_size: int
    micro_batch_size: int
    seed: int

    @property
    def updates_per_epoch(self) -> int:
        """The last update of an epoch takes the rest, however few."""
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
        """A batch cut into pieces of at most `micro_batch_size` examples."""
        return [
            batch[first : first + self.micro_batch_size]
            for first in range(0, len(batch), self.micro_batch_size)
        ]


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Examples padded on the right to the longest of them."""

    input_ids: torch.Tensor
    """int64 [batch, length]."""
    attention_mask: torch.Tensor
    """bool [batch, length], true at tokens."""
    labels: torch.Tensor
    """int64 [batch]."""

    def to(self, device: torch.device) -> PaddedBatch:
        """The same on another device."""
        return PaddedBatch(self.input_ids.to(device), self.attention_mask.to(device), self.labels.to(device))


def pad_batch(encoded: EncodedExamples, rows: np.ndarray, pad_id: int) -> PaddedBatch:
    """The examples numbered `rows` (int64 [batch]) as tensors in host memory."""
    lengths = encoded.lengths[rows]
    columns = np.arange(lengths.max())
    present = columns < lengths[:, None]
    input_ids = np.full(present.shape, pad_id, dtype=np.int64)
    input_ids[present] = encoded.values[(encoded.offsets[rows][:, None] + columns)[present]]
    return PaddedBatch(
        torch.from_numpy(input_ids), torch.from_numpy(present), torch.from_numpy(encoded.labels[rows])
    )
