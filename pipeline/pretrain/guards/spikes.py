"""Rollback after a loss spike: which losses are spikes, and the global batches that are left out after them."""

from __future__ import annotations

import math
from pathlib import Path

from pipeline.pretrain.guards import endings
from pipeline.pretrain.guards.loss_window import LossWindow
from pipeline.pretrain.step.collectives import from_rank_zero
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.skipped_data import SkipLedger, SkippedData, SkippedStep


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
