"""The one message of a step between the ranks: sums of losses, the next batch's predictions, and rank 0's signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from torch import Tensor

from pipeline.pretrain.step.collectives import summed


@dataclass(frozen=True, slots=True)
class Signals:
    """What rank 0 tells the other ranks, which give nothing but zeros."""

    elapsed_s: float = 0.0
    """Seconds of training before the next step, by rank 0's clock."""
    stop: bool = False
    """Whether the run was asked to stop."""
    saving_fails: bool = False
    """Whether too many checkpoints in a row could not be written."""
    is_lost: bool = False
    """Whether another group has taken the run over."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What every rank knows after the exchange."""

    sums: list[float]
    """The step's losses and right predictions over all ranks, as `Totals` orders them."""
    counts: dict[str, float]
    """By loss term, the predictions of the next step's global batch."""
    signals: Signals


def exchange(sums: Tensor, counts: Mapping[str, float], signals: Signals) -> Shared:
    """Add up over ranks, in one all-reduce.

    Args:
        sums: [numbers] float64 on this rank's device.
        counts: by loss term, the predictions of this rank's part of the next batch.
        signals: rank 0's; defaults on the other ranks.
    """
    all_sums, others = summed(sums, [*counts.values(), *map(float, astuple(signals))])
    elapsed_s, *flags = others[len(counts) :]
    all_counts = dict(zip(counts, others, strict=False))
    return Shared(all_sums, all_counts, Signals(elapsed_s, *(flag > 0 for flag in flags)))
