"""Losses that must not go into the weights: spikes, which roll the run back and leave their data out, and losses or
gradients that are not finite, whose updates are skipped.

Which losses are spikes is a pure function of the losses, so that a resumed run, which has the same losses, decides the
same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from cluster.artefacts.errors import LossSpikeError, NonFiniteError
from cluster.collectives import gathered
from pipeline.run.log.lines import LogKind
from pipeline.run.skipped_data import SkippedStep

if TYPE_CHECKING:
    from pipeline.pretrain.batches import HostBatch
    from pipeline.run.config import PretrainConfig
    from pipeline.run.directory import RunDirectory
    from pipeline.run.log.log import RunLog
    from pipeline.samples.loader import Step

_MAD_TO_SIGMA = 1.4826
"""Standard deviations in a median absolute deviation of normal values (Rousseeuw and Croux 1993, section 1)."""
_MEAN_DEVIATION_TO_SIGMA = 1.2533
"""The same for the mean absolute deviation (Iglewicz and Hoaglin 1993, section 3.4)."""


class LossWindow:
    """The last losses of a run, and how far a new one lies above them."""

    def __init__(self, size: int, threshold: float | None, losses: Iterable[float] = ()) -> None:
        """A loss is a spike from the score `threshold` on, never with None; `losses` of a resumed run, oldest first."""
        self._threshold = threshold
        self._losses: deque[float] = deque(losses, maxlen=size)

    @property
    def losses(self) -> list[float]:
        """The window, oldest first; what a checkpoint keeps."""
        return list(self._losses)

    def score(self, loss: float) -> float | None:
        """The robust z-score of a loss: standard deviations above the window's median, negative below it.

        Half of the window may be outliers without changing it (Iglewicz and Hoaglin 1993, section 3.3). None until
        the window is full; infinite for a loss that is not finite.
        """
        if len(self._losses) < (self._losses.maxlen or 0):
            return None
        if not math.isfinite(loss):
            return math.inf
        middle = median(self._losses)
        deviations = [abs(one - middle) for one in self._losses]
        # More than half of the losses may be equal, in tests and in toys; the mean still sees the others.
        sigma = _MAD_TO_SIGMA * median(deviations) or _MEAN_DEVIATION_TO_SIGMA * fmean(deviations)
        if sigma == 0.0:
            return 0.0 if loss == middle else math.copysign(math.inf, loss - middle)
        return (loss - middle) / sigma

    def is_spike(self, loss: float) -> bool:
        """Whether a loss lies so far above the window that its step is to be undone."""
        score = self.score(loss)
        return self._threshold is not None and score is not None and score >= self._threshold

    def add(self, loss: float) -> None:
        """Add the loss of an update that was made, if it is finite."""
        if math.isfinite(loss):
            self._losses.append(loss)


def report_skipped_update(log: RunLog, step: Step[HostBatch], loss: float, grad_norm: float) -> None:
    """Record an update that was skipped, with its samples. All ranks call it: they know the same loss and norm."""
    own = (batch.sample_ids.tolist() for batch in step.micro_batches.values())
    samples = gathered([sample for samples in own for sample in samples])
    details = {
        "data_step": step.data_step,
        "why": "the loss" if not math.isfinite(loss) else "the gradient",
        "loss": str(loss),
        "grad_norm": str(grad_norm),
        "samples": {f"rank {rank}": own for rank, own in enumerate(samples)},
    }
    log.event(LogKind.SKIPPED_UPDATE, step.update + 1, details)


def loss_spike(
    run: RunDirectory, config: PretrainConfig, spikes: Sequence[SkippedStep], checkpoint: Path | str | None
) -> LossSpikeError:
    """The error after one spike more than `guards.max_rollbacks` allows.

    Args:
        spikes: all of the run; the last one is the one too many.
        checkpoint: the last good one; None where there is none yet.
    """
    listed = "\n".join(
        f"  update {one.at_update}: loss {one.loss:.4f},"
        f" {'far' if one.score is None else f'{one.score:.1f} deviations'} above the last ones;"
        f" {_samples_of(config, one.data_step)}"
        for one in spikes
    )
    allowed = config.guards.max_rollbacks
    return LossSpikeError(
        f"The loss of {run.path.name} jumped up again, and guards.max_rollbacks {allowed} is spent:\n{listed}",
        kept=_kept(checkpoint),
        next_step=f"look at the learning rate and the data; to leave out more: cloze resume {run.typed}"
        f" guards.max_rollbacks={allowed + 3}",
    )


def not_finite(
    run: RunDirectory,
    config: PretrainConfig,
    update: int,
    data_steps: Sequence[int],
    checkpoint: Path | str | None,
) -> NonFiniteError:
    """The error after one skipped update more than `guards.max_skipped_updates` allows.

    Args:
        update: the last skipped one.
        data_steps: the global batches of the updates that were skipped in a row.
        checkpoint: the last good one; None where there is none yet.
    """
    listed = "\n".join(f"  {_samples_of(config, step)}" for step in data_steps)
    fp16 = " or precision=bf16" if config.precision == "fp16" else ""
    return NonFiniteError(
        f"{len(data_steps)} updates of {run.path.name} in a row could not be made, up to update {update}: their losses"
        f" or gradients are not finite. The samples:\n{listed}",
        kept=_kept(checkpoint),
        next_step=f"continue more carefully: cloze resume {run.typed} optimizer.lr={config.optimizer.lr / 2:g}{fp16}"
        " --allow-changed optimizer.lr" + (" --allow-changed precision" if fp16 else ""),
    )


def _samples_of(config: PretrainConfig, data_step: int) -> str:
    """A global batch and its training samples, in words; they are counted from the start of their phase."""
    since = number = 0
    for number, phase in enumerate(config.phases):
        if number + 1 == len(config.phases) or data_step < since + phase.steps:
            break
        since += phase.steps
    first, last = (config.batch_plan.samples_between(since, step) for step in (data_step, data_step + 1))
    place = f" of phase {number}" if len(config.phases) > 1 else ""
    return f"global batch {data_step}, samples {first} to {last - 1}{place}"


def _kept(checkpoint: Path | str | None) -> str:
    return f"the last checkpoint {checkpoint}" if checkpoint else "no checkpoint yet; the run's directory"
