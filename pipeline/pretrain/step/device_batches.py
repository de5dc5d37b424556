"""Micro-batches as tensors, made in the loader's thread so that the step does not wait for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.objectives.base import Batch
from pipeline.samples.packed import Packed


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A corrupted micro-batch in host memory, pinned where a GPU is to fetch it."""

    inputs: dict[str, Tensor]
    """The network's arguments."""
    counts: dict[str, int]
    """By loss term, its predictions."""
    sample_ids: np.ndarray
    """[batch] uint64 numbers of the samples in their epochs."""
    sources: Tensor | None
    """[predictions of the first term] int16 numbers of their sources; None where these are not told apart."""

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """The network's arguments on a device; the copy overlaps with what the device is doing."""
        return {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """The network's arguments in host memory, as the objective gave them."""
        return {name: tensor.numpy() for name, tensor in self.inputs.items()}

    def sources_on(self, device: torch.device) -> Tensor | None:
        """`sources` on the device (non-blocking copy), or None if sources are not tracked."""
        return None if self.sources is None else self.sources.to(device, non_blocking=True)


def host_batch(packed: Packed, batch: Batch, device: torch.device) -> HostBatch:
    """The tensors of a micro-batch; they share memory with its arrays on a CPU."""
    inputs = {name: torch.from_numpy(array) for name, array in batch.inputs.items()}
    sources = None if batch.sources is None else torch.from_numpy(batch.sources)
    if device.type == "cuda":
        inputs = {name: tensor.pin_memory() for name, tensor in inputs.items()}
        sources = None if sources is None else sources.pin_memory()
    return HostBatch(inputs, batch.counts, packed.sample_ids, sources)
