"""Updates that were skipped because the loss or a gradient was not finite: told, and limited in number."""

from __future__ import annotations

import math
from collections.abc import Callable

from pipeline.pretrain.guards import endings
from pipeline.pretrain.step.collectives import from_rank_zero, gathered
from pipeline.pretrain.step.device_batches import HostBatch
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.reporter import Reporter
from pipeline.samples.loader import Step


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
