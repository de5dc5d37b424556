"""Micro-batches as tensors, and the sums of their losses; training and evaluation share both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from models.losses import EACH, sums_by_group
from pipeline.samples.noise import Noise
from pipeline.terms import TOTAL

if TYPE_CHECKING:
    from pipeline.objectives.base import Batch
    from pipeline.samples.packed import Packed


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A corrupted micro-batch in host memory, pinned for transfer to a GPU."""

    inputs: dict[str, Tensor]
    """The network's arguments."""
    counts: dict[str, int]
    """By loss term, its predictions."""
    sample_ids: np.ndarray
    """[batch] uint64 indices of the samples in their epochs."""
    sources: Tensor | None
    """[predictions of the first term] int16 indices of their sources; None where these are not distinguished."""

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


def seed_dropout(seed: int, step: int, micro_batch: int) -> None:
    """Make dropout a function of (seed, step, micro-batch), on whichever rank the micro-batch runs."""
    torch.manual_seed(Noise.of("dropout", seed, step, micro_batch).seed())


class Totals:
    """Sums of a step or an evaluation on a rank, by loss term and by source; nothing leaves the device."""

    def __init__(self, weights: Mapping[str, float], sources: Sequence[str], device: torch.device) -> None:
        """
        Args:
            weights: by loss term, its weight in the loss.
            sources: names of the sources that are distinguished, in the order of their numbers, by the first term
                alone.
        """
        self._weights = weights
        self._source_keys = [f"{next(iter(weights))}/loss/{name}" for name in sources]
        self._by_source = torch.zeros((len(sources), 2), dtype=torch.float64, device=device)
        self._losses = torch.zeros(len(weights), dtype=torch.float64, device=device)
        self._correct = torch.zeros(len(weights), dtype=torch.float64, device=device)
        self._has_correct: list[str] = []

    def add(
        self, losses: Mapping[str, Tensor], correct: Mapping[str, Tensor], sources: Tensor | None = None
    ) -> None:
        """Add a micro-batch.

        Args:
            losses: by term, summed.
            correct: by term, where it applies, the right predictions; and the first term's losses one by one.
            sources: [predictions of the first term] int16 indices of their sources, where these are distinguished.
        """
        self._has_correct = [term for term in self._weights if term in correct]
        nothing = self._correct.new_zeros(())
        self._losses += torch.stack([losses[term].detach() for term in self._weights])
        self._correct += torch.stack([correct.get(term, nothing) for term in self._weights])
        if sources is not None:
            self._by_source += sums_by_group(correct[EACH], sources, len(self._source_keys))

    @property
    def sums(self) -> Tensor:
        """[2 x (terms + sources)] float64: losses and right predictions of terms, then losses and predictions of
        sources; to be added up over ranks."""
        return torch.cat([self._losses, self._correct, self._by_source.flatten()])

    def means(self, sums: Sequence[float], counts: Mapping[str, float]) -> dict[str, float]:
        """`loss` (the weighted sum), `TERM/loss`, `TERM/accuracy` where it applies, and with the first term
        `TERM/loss/SOURCE` of every source that something was predicted of.

        Args:
            sums: `sums` of all ranks together.
            counts: by term, the predictions of all ranks together.
        """
        terms = list(self._weights)
        losses = dict(zip(terms, sums, strict=False))
        correct = dict(zip(terms, sums[len(terms) :], strict=False))
        means = {term: losses[term] / max(counts[term], 1.0) for term in terms}
        found = {TOTAL: sum(weight * means[term] for term, weight in self._weights.items())}
        found |= {f"{term}/loss": mean for term, mean in means.items()}
        found |= {f"{term}/accuracy": correct[term] / max(counts[term], 1.0) for term in self._has_correct}
        by_source = sums[2 * len(terms) :]
        rows = zip(self._source_keys, by_source[::2], by_source[1::2], strict=True)
        return found | {key: total / count for key, total, count in rows if count}
