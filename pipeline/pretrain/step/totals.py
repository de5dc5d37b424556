"""Sums of losses and right predictions over micro-batches, and their means over the global batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from models.losses import EACH
from pipeline.objectives.terms import TOTAL
from pipeline.pretrain.step.source_totals import SourceTotals


class Totals:
    """What a step, or an evaluation, adds up on a rank, by loss term and by source; nothing leaves the device."""

    def __init__(self, weights: Mapping[str, float], sources: Sequence[str], device: torch.device) -> None:
        """
        Args:
            weights: by loss term, its weight in the loss.
            sources: names of the sources that are told apart.
        """
        self._weights = weights
        self._sources = SourceTotals(sources, weights, device)
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
            sources: [predictions of the first term] int16 numbers of their sources, where these are told apart.
        """
        self._has_correct = [term for term in self._weights if term in correct]
        nothing = self._correct.new_zeros(())
        self._losses += torch.stack([losses[term].detach() for term in self._weights])
        self._correct += torch.stack([correct.get(term, nothing) for term in self._weights])
        if sources is not None:
            self._sources.add(correct[EACH], sources)

    @property
    def sums(self) -> Tensor:
        """[2 x (terms + sources)] float64: losses and right predictions of terms, then losses and predictions of
        sources; to be added up over ranks."""
        return torch.cat([self._losses, self._correct, self._sources.sums])

    def means(self, sums: Sequence[float], counts: Mapping[str, float]) -> dict[str, float]:
        """`loss` (the weighted sum), `TERM/loss`, `TERM/accuracy` where it applies, and the first term's by source.

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
        return found | self._sources.means(sums[2 * len(terms) :])
