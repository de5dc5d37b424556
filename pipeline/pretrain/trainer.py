"""The loop of one rank. Every rank runs this file; ranks share only the gradients and a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from cluster import logs
from cluster.artefacts.manifest import created_by
from cluster.group import Rank
from cluster.stopping import StopFile
from pipeline.checkpoint.checkpoint import DEEPSPEED_DIRECTORY
from pipeline.checkpoint.store import store_of
from pipeline.engine.deterministic import deterministic_algorithms
from pipeline.engine.device import trains_on_cuda
from pipeline.engine.interface import Update
from pipeline.pretrain.assembly import assemble, seed_dropout
from pipeline.pretrain.closing import closed_by
from pipeline.pretrain.counters import Counters
from pipeline.pretrain.guards import endings
from pipeline.pretrain.guards.fence import Fence
from pipeline.pretrain.guards.skipped_updates import report_skipped_update, require_few_skipped
from pipeline.pretrain.guards.spikes import SpikeGuard
from pipeline.pretrain.measuring.machine import describe
from pipeline.pretrain.measuring.measurements import Measurements
from pipeline.pretrain.measuring.profiling import StepProfiler
from pipeline.pretrain.run_checkpoints import RunCheckpoints
from pipeline.pretrain.schedule import Schedule
from pipeline.pretrain.start import Start, find_start
from pipeline.pretrain.step.clock import StepClock
from pipeline.pretrain.step.collectives import from_rank_zero, gathered
from pipeline.pretrain.step.device_batches import HostBatch
from pipeline.pretrain.step.exchange import Shared, Signals, exchange
from pipeline.pretrain.step.totals import Totals
from pipeline.run.config import PretrainConfig
from pipeline.run.directory import RunDirectory
from pipeline.run.environment import environment
from pipeline.run.events import Event
from pipeline.run.heartbeat import Heartbeat
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.reporter import Reporter
from pipeline.samples.epochs.index_cache import IndexCache
from pipeline.samples.loader import Step


class Trainer:
    """One rank of one attempt at a run."""

    def __init__(self, run: RunDirectory, config: PretrainConfig, rank: Rank, ending: ExitStack) -> None:
        """Put all parts together, standing where the newest checkpoint does.

        Args:
            ending: closes the parts; the caller leaves it when training ends.
        """
        self.run, self.config, self.rank = run, config, rank
        is_first = rank.rank == 0
        self.heartbeat = closed_by(ending, Heartbeat(run, rank.rank, config.guards.stall_timeout_s))
        self.schedule = Schedule(config)
        self.stop_file = StopFile(run.path)
        # Before the checkpoints are listed: from here on, no earlier group adds one.
        self.fence = Fence(run) if is_first else None
        self.store = store_of(run, config)
        start = find_start(run, self.store, rank)
        first_step = 0 if start is None else start.state.step
        self.reporter = closed_by(
            ending,
            Reporter(
                run,
                since=first_step,
                is_reporter=is_first,
                wandb=config.wandb is not None,
                is_lost=self.fence.is_lost if self.fence is not None else lambda: False,
            ),
        )
        # Its alarm is taken back first: sending the rest of the log may take longer than a stall.
        closed_by(ending, self.heartbeat)
        self.spikes = SpikeGuard(run, config, writes=is_first)
        index_cache = IndexCache(run.index_cache, writes=True, report=run.record_event)
        first_data_step = self.spikes.skipped.data_step(first_step)
        parts = assemble(config, rank, index_cache, first_data_step=first_data_step)
        self.inputs, self.engine, self.weights = parts.inputs, parts.engine, parts.weights
        self.loader, self.evaluation = parts.loader, parts.evaluation
        self.profiler = closed_by(
            ending, StepProfiler(config.profile, run.profile, rank.rank, self.reporter.history)
        )
        self.clock = StepClock(self.engine.device)
        self.counters = Counters()
        self.is_resumed = start is not None
        if start is not None:
            self._restore(start)
        self.checkpoints = RunCheckpoints(
            run,
            config,
            rank,
            self.store,
            self.inputs,
            self.reporter,
            while_waiting=lambda: self._beat("saving"),
            fence=self.fence,
        )
        workers = gathered({"rank": rank.rank, **describe(self.engine.device)})
        self.measurements = Measurements(
            run, config, rank, self.engine.device, self.inputs.build_model, workers, self.reporter
        )
        self.reporter.history(
            Event.STARTED,
            step=self.counters.step,
            world_size=rank.world_size,
            optimizer=config.optimizer.kind,
            device=str(self.engine.device),
            attention=parts.attention._asdict(),
            workers=workers,
            attempt=self.checkpoints.attempt,
            store_fingerprints=[store.fingerprint for store in self.inputs.stores],
            commit=created_by().commit,
            environment=environment(),
        )

    def train(self) -> None:
        """Run from the newest checkpoint to the end."""
        if not self.is_resumed:
            self._evaluate()
            if self.config.guards.spike_score is not None:
                # A checkpoint to roll back to.
                self._save()
        while not self._is_over():
            self._train_until_rollback()
        self.checkpoints.wait()
        self.checkpoints.require_saved(self.counters.step)

    def _train_until_rollback(self) -> None:
        """Make updates until the run ends, or is rolled back after a loss spike."""
        first, last = self.counters.step, self.config.num_steps
        self.clock.since_last()
        with closing(self.loader.steps(first, last, self.spikes.skipped.data_step)) as steps:
            self._beat("data")
            following: Step[HostBatch] | None = next(steps)
            shared = self._share(self._totals(), following)
            while following is not None:
                step, counts, elapsed_s = following, shared.counts, shared.signals.elapsed_s
                self.measurements.prepare(step)
                self.profiler.step(step.update)
                self.clock.start_step()
                totals = self._forward_and_backward(step, counts)
                self._beat("data")
                with self.clock.waiting(), self.profiler.part("data"):
                    following = next(steps, None)
                shared = self._share(totals, following)
                metrics = totals.means(shared.sums, counts)
                if self._rolls_back(step, metrics["loss"]):
                    return
                rate = self.schedule.learning_rate(step.update, elapsed_s)
                update = self._update(step, metrics["loss"], rate)
                self.counters.predicted_tokens += int(counts[next(iter(self.weights))])
                self.counters.elapsed_s = shared.signals.elapsed_s
                with self.profiler.part("logging"):
                    self._report(step, metrics | {"lr": rate, "elapsed_s": elapsed_s}, counts, update)
                self._evaluate_and_save()
                self._stop_if_asked(shared.signals)
                if self._is_over():
                    return

    def _forward_and_backward(self, step: Step[HostBatch], counts: Mapping[str, float]) -> Totals:
        """Add up the gradients of this rank's micro-batches."""
        # The engine averages over ranks and knows nothing of tokens: these scales turn its average of sums into the
        # sum over the global batch divided by the predictions of each term.
        scales = {
            term: weight * self.rank.world_size / max(counts[term], 1.0)
            for term, weight in self.weights.items()
        }
        totals = self._totals()
        for batch in step.micro_batches:
            self._beat("forward")
            seed_dropout(self.config.seed, step.update, batch.number)
            with self.clock.forward(), self.profiler.part("forward"):
                losses, correct = self.engine(**batch.data.on(self.engine.device))
                loss = torch.stack([losses[term] * scale for term, scale in scales.items()]).sum()
            with self.profiler.part("backward"):
                self.engine.backward(loss, last=batch is step.micro_batches[-1])
            totals.add(losses, correct, batch.data.sources_on(self.engine.device))
        return totals

    def _share(self, totals: Totals, following: Step[HostBatch] | None) -> Shared:
        """Exchange this step's losses, the next batch's predictions and rank 0's signals with the other ranks.

        Raises:
            TakenOverError: another group has taken the run over; nothing of this step is written.
        """
        self._beat("exchange")
        batches = [] if following is None else following.micro_batches
        counts = {term: float(sum(batch.data.counts[term] for batch in batches)) for term in self.weights}
        signals = Signals()
        if self.rank.rank == 0:
            saving_fails = self.checkpoints.tell()
            is_lost = self.fence is not None and self.fence.is_lost(now=saving_fails)
            signals = Signals(self._elapsed_s(following), self.stop_file.requested(), saving_fails, is_lost)
        with self.profiler.part("exchange"):
            shared = exchange(totals.sums, counts, signals)
        if shared.signals.is_lost:
            if self.fence is not None:
                self.fence.require()
            raise endings.taken_over(self.run)
        return shared

    def _elapsed_s(self, following: Step[HostBatch] | None) -> float:
        """Seconds of training before the next update. One that is repeated takes what was logged, because the learning
        rate of a run with a time budget depends on it."""
        passed_s = self.counters.elapsed_s + self.clock.since_last()
        recorded = None if following is None else self.reporter.recorded(following.update + 1)
        return passed_s if recorded is None else recorded["elapsed_s"]

    def _update(self, step: Step[HostBatch], loss: float, rate: float) -> Update:
        """Update the weights, or skip the update where the loss or a gradient is not finite.

        Raises:
            NonFiniteError: too many updates in a row were skipped.
        """
        self._beat("update")
        is_finite = math.isfinite(loss)
        with self.profiler.part("optimizer"):
            update = self.engine.update(rate, discard=not is_finite)
        self.counters.step = step.update + 1
        samples = self.config.batch_plan.samples_at(step.update)
        self.counters.samples += samples
        self.counters.tokens += samples * self.config.sequence_length_at(step.update)
        if is_finite:
            self.spikes.add(loss)
        if update.applied:
            self.counters.skipped_updates = 0
        elif self.config.precision != "fp16" or not is_finite:
            # Dynamic loss scaling skips updates on its way to the right scale.
            self.counters.skipped_updates += 1
            report_skipped_update(self.reporter, step, loss, update.grad_norm)
            require_few_skipped(
                self.run,
                self.config,
                self.counters.step,
                self.counters.skipped_updates,
                self.spikes.skipped.data_step,
                lambda: self.checkpoints.newest_place,
            )
        return update

    def _rolls_back(self, step: Step[HostBatch], loss: float) -> bool:
        """Whether the loss is a spike; the run is then rolled back to its last checkpoint, and leaves the step's data
        out.

        Raises:
            LossSpikeError: there was one spike too many.
        """
        spike = self.spikes.find(step.update, step.data_step, loss)
        if spike is None:
            return False
        self.checkpoints.wait()
        start = find_start(self.run, self.store, self.rank)
        self.spikes.leave_out(spike, None if start is None else start.directory)
        assert start is not None
        details = spike.model_dump(mode="json")
        self.reporter.event(LogKind.SPIKE, step.update + 1, **details, back_to=start.state.step)
        self.engine.update(0.0, discard=True)
        self._restore(start)
        return True

    def _restore(self, start: Start) -> None:
        """Restore the engine, the counters and the loss window from a checkpoint."""
        self.counters = Counters.of(start.state, self.config.metric)
        # At the checkpoint's step: heartbeats count the updates since the first one.
        self._beat("loading")
        self.engine.restore(start.directory / DEEPSPEED_DIRECTORY)
        self.spikes.restore(start.state.losses)

    def _report(
        self, step: Step[HostBatch], metrics: Mapping[str, float], counts: Mapping[str, float], update: Update
    ) -> None:
        """Log the step; every so many steps, compare the ranks."""
        values = dict(metrics) | {
            "grad_norm": update.grad_norm,
            "predicted_tokens": int(counts[next(iter(self.weights))]),
        }
        if update.loss_scale is not None:
            values["loss_scale"] = update.loss_scale
        self.measurements.report(self.counters.step, step, values, self.clock.end_step())

    def _evaluate_and_save(self) -> None:
        """Evaluate and save, if either is due after this update."""
        step, last = self.counters.step, self._is_over()
        if last or step % self.config.evaluation.every_steps == 0:
            self._evaluate()
            last = self._is_over()
        if last or step % self.config.checkpoint.every_steps == 0:
            self._save()

    def _evaluate(self) -> None:
        metrics = self.evaluation.measure(self.engine, self.rank, lambda: self._beat("evaluation"))
        self.counters.note_evaluation(metrics, self.config.metric, self.config.evaluation.min_improvement)
        self.reporter.write(LogKind.HELD_OUT, self.counters.step, metrics)

    def _save(self) -> None:
        self._beat("saving")
        self.checkpoints.save(self.engine, self.counters, self.spikes)

    def _is_over(self) -> bool:
        """Whether the run has made its last update: by its steps, its budget, or its patience without improvement."""
        patience = self.config.evaluation.patience
        if patience is not None and self.counters.evaluations_since_best >= patience:
            return True
        return self.schedule.is_over(self.counters.step, self.counters.elapsed_s)

    def _stop_if_asked(self, signals: Signals) -> None:
        """Save and end, when the run was asked to; or end, when it cannot be saved.

        Raises:
            PreemptedError: it was asked to.
            StorageError: its checkpoints cannot be written.
        """
        if signals.saving_fails:
            raise self.checkpoints.failure()
        if not signals.stop or self._is_over():
            return
        step = self.counters.step
        if step % self.config.checkpoint.every_steps != 0:
            self._save()
        self.checkpoints.wait()
        self.checkpoints.require_saved(step)
        self.reporter.history(Event.PREEMPTED, step=step, reason=self.stop_file.reason)
        raise endings.preempted(self.run, step, self.stop_file.reason)

    def _totals(self) -> Totals:
        return Totals(self.weights, self.inputs.source_names, self.engine.device)

    def _beat(self, part: str) -> None:
        logs.bind(step=self.counters.step)
        self.heartbeat.beat(self.counters.step, part)


def run_rank(argument: Mapping[str, Any], rank: Rank) -> None:
    """Body of every worker; `argument` holds `run`, its directory."""
    torch.set_num_threads(rank.num_threads)
    run = RunDirectory(Path(argument["run"]))
    if trains_on_cuda():
        # Before the first exchange, which takes the current device.
        torch.cuda.set_device(rank.local_rank)
    config = from_rank_zero(run.config() if rank.rank == 0 else None)
    with (
        deterministic_algorithms(config.compute.deterministic),
        ExitStack() as ending,
    ):
        Trainer(run, config, rank, ending).train()
