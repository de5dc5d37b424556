"""Losses that must not go into the weights: spikes, which roll the run back and leave their data out, and losses or
gradients that are not finite, whose updates are skipped.

Which losses are spikes is a pure function of the losses, so that a resumed run, which has the same losses, decides the
same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, median

from cluster.collectives import from_rank_zero, gathered
from pipeline.pretrain import endings
from pipeline.pretrain.batches import HostBatch
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.reporter import Reporter
from pipeline.run.skipped_data import SkipLedger, SkippedData, SkippedStep
from pipeline.samples.loader import Step

_MAD_TO_SIGMA = 1.4826
"""Standard deviations in a median absolute deviation of normal values (Rousseeuw and Croux 1993, section 1)."""
_MEAN_DEVIATION_TO_SIGMA = 1.2533
"""The same for the mean absolute deviation (Iglewicz and Hoaglin 1993, section 3.4)."""


class LossWindow:
    """The last losses of a run, and how far a new one lies above them."""

    def __init__(self, size: int, threshold: float | None, losses: Iterable[float] = ()) -> None:
        """
        Args:
            size: losses that a new one is compared with.
            threshold: score at which a loss is a spike; None never calls one a spike.
            losses: the window of a run that is resumed, oldest first.
        """
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


class SpikeGuard:
    """Compares every loss with the last ones; all ranks have one, and decide alike because their losses are equal."""

    def __init__(self, run: RunDirectory, config: PretrainConfig, *, writes: bool) -> None:
        """Read what the run leaves out already.

        Args:
            writes: whether this is rank 0, which reads and writes the ledger for all.

        Raises:
            CorruptArtefactError: the ledger of left-out data is damaged.
        """
        self._run, self._config, self._writes = run, config, writes
        # Rank 0 reads for all: a shared file system may show ranks different states of a file.
        entries = from_rank_zero(SkipLedger(run).entries if writes else None)
        self._ledger = SkipLedger(run, entries)
        self.skipped: SkippedData = self._ledger.data
        """Which global batch each update reads."""
        self.restore([])

    def restore(self, losses: list[float]) -> None:
        """Begin with the loss window that a checkpoint holds."""
        guards = self._config.guards
        self._window = LossWindow(guards.spike_window, guards.spike_score, losses)

    @property
    def losses(self) -> list[float]:
        """The loss window, oldest first; checkpoints hold it."""
        return self._window.losses

    def add(self, loss: float) -> None:
        """Add the loss of an update that was made to the window."""
        self._window.add(loss)

    def find(self, update: int, data_step: int, loss: float) -> SkippedStep | None:
        """The spike that the loss of an update is, or None; a loss that is not finite is none."""
        if not math.isfinite(loss) or not self._window.is_spike(loss):
            return None
        score = self._window.score(loss)
        return SkippedStep(
            at_update=update,
            data_step=data_step,
            loss=loss,
            score=None if score is None or math.isinf(score) else score,
        )

    def leave_out(self, spike: SkippedStep, checkpoint: Path | None) -> None:
        """Leave the global batch of a spike out from now on; it is on disk when any rank returns.

        Args:
            checkpoint: the checkpoint that the run is rolled back to; None before the first.

        Raises:
            LossSpikeError: there is no checkpoint, or `guards.max_rollbacks` is spent.
            StorageError: the file system refuses.
        """
        entries = self._ledger.entries
        if len(entries) >= self._config.guards.max_rollbacks or checkpoint is None:
            raise endings.loss_spike(self._run, self._config, spike, entries, checkpoint)
        (self._ledger.add if self._writes else self._ledger.note)(spike)
        from_rank_zero(None)
        self.skipped = self._ledger.data


def report_skipped_update(reporter: Reporter, step: Step[HostBatch], loss: float, grad_norm: float) -> None:
    """Record an update that was skipped, with its samples. All ranks call it: they know the same loss and norm."""
    mine = [sample for batch in step.micro_batches for sample in batch.data.sample_ids.tolist()]
    samples = gathered(mine)
    reporter.event(
        LogKind.SKIPPED_UPDATE,
        step.update + 1,
        data_step=step.data_step,
        why="the loss" if not math.isfinite(loss) else "the gradient",
        loss=str(loss),
        grad_norm=str(grad_norm),
        samples={f"rank {rank}": own for rank, own in enumerate(samples)},
    )


def require_few_skipped(
    run: RunDirectory,
    config: PretrainConfig,
    num_updates: int,
    num_skipped: int,
    data_step: Callable[[int], int],
    newest_checkpoint: Callable[[], str | None],
) -> None:
    """Raise NonFiniteError when more updates in a row were skipped than `guards.max_skipped_updates` allows.

    Args:
        num_updates: made or skipped until now.
        num_skipped: how many of the last ones were skipped in a row.
        data_step: gives the global batch that an update reads.
        newest_checkpoint: gives its place, None before the first; rank 0's answer counts.
    """
    if num_skipped > config.guards.max_skipped_updates:
        skipped = [data_step(update) for update in range(num_updates - num_skipped, num_updates)]
        place = from_rank_zero(newest_checkpoint())
        raise endings.not_finite(run, config, num_updates - 1, skipped, place)
