"""The course of one rank: updates, and between them evaluations, checkpoints and the end. Every rank runs this file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from cluster.collectives import from_rank_zero
from cluster.group import Rank
from pipeline.engine.device import deterministic_algorithms, trains_on_cuda
from pipeline.pretrain import endings
from pipeline.pretrain.assembly import Parts, assemble
from pipeline.pretrain.schedule import Schedule
from pipeline.pretrain.step import Signals, Updates
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.kinds import LogKind


class Trainer:
    """One rank of one attempt at a run."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._claim, self._config = parts, parts.claim, parts.claim.config
        self._schedule = Schedule(self._config)

    def train(self, *, is_resumed: bool) -> None:
        """Run from where the parts stand to the end."""
        if not is_resumed:
            self._evaluate()
            if self._config.guards.spike_score is not None:
                # A checkpoint to roll back to.
                self._save()
        updates = Updates(self._parts, self._schedule)
        while not self._is_over():
            with closing(updates.until_rollback()) as made:
                for signals in made:
                    self._evaluate_and_save()
                    self._stop_if_asked(signals)
                    if self._is_over():
                        break
        checkpoints = self._parts.checkpoints
        checkpoints.wait()
        checkpoints.require_saved(self._parts.counters.step)

    def _evaluate_and_save(self) -> None:
        """Evaluate and save, if either is due after this update."""
        step, last = self._parts.counters.step, self._is_over()
        if last or step % self._config.evaluation.every_steps == 0:
            self._evaluate()
            last = self._is_over()
        if last or step % self._config.checkpoint.every_steps == 0:
            self._save()

    def _evaluate(self) -> None:
        parts, config = self._parts, self._config
        metrics = parts.data.evaluation.measure(
            parts.engine, self._claim.rank, lambda: parts.beat("evaluation")
        )
        parts.counters.add_evaluation(metrics, config.metric, config.evaluation.min_improvement)
        parts.reporter.write(LogKind.HELD_OUT, parts.counters.step, metrics)

    def _save(self) -> None:
        self._parts.beat("saving")
        self._parts.checkpoints.save(self._parts.engine, self._parts.counters, self._parts.spikes)

    def _is_over(self) -> bool:
        """Whether the run has made its last update: by its steps, its budget, or its patience without improvement."""
        patience, counters = self._config.evaluation.patience, self._parts.counters
        if patience is not None and counters.evaluations_since_best >= patience:
            return True
        return self._schedule.is_over(counters.step, counters.elapsed_s)

    def _stop_if_asked(self, signals: Signals) -> None:
        """Save and end, when the run was asked to; or end, when it cannot be saved.

        Raises:
            PreemptedError: it was asked to.
            StorageError: its checkpoints cannot be written.
        """
        parts, step = self._parts, self._parts.counters.step
        if signals.saving_fails:
            raise parts.checkpoints.failure()
        if not signals.stop or self._is_over():
            return
        if step % self._config.checkpoint.every_steps != 0:
            self._save()
        parts.checkpoints.wait()
        parts.checkpoints.require_saved(step)
        reason = parts.stop_file.reason
        parts.reporter.history(Event.PREEMPTED, step=step, reason=reason)
        raise endings.preempted(self._claim.run, step, reason)


def run_rank(argument: Mapping[str, Any], rank: Rank) -> None:
    """Body of every worker; `argument` holds `run`, its directory."""
    torch.set_num_threads(rank.num_threads)
    run = RunDirectory(Path(argument["run"]))
    if trains_on_cuda():
        # Before the first exchange, which takes the current device.
        torch.cuda.set_device(rank.local_rank)
    config = from_rank_zero(run.config() if rank.rank == 0 else None)
    with deterministic_algorithms(config.compute.deterministic), ExitStack() as ending:
        parts, is_resumed = assemble(run, config, rank, ending)
        Trainer(parts).train(is_resumed=is_resumed)
