"""The loop of one rank. Every rank runs this file; what is shared is only the gradients and a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cluster.artefacts.manifest import created_by
from cluster.stopping import StopFile
from cluster.train_group import Rank
from pipeline.checkpoints.checkpoint import DEEPSPEED_DIRECTORY, TrainerState
from pipeline.engine.device import trains_on_cuda
from pipeline.engine.interface import Update
from pipeline.pretrain.assembly import assemble, seed_dropout
from pipeline.pretrain.clock import StepClock
from pipeline.pretrain.collectives import from_rank_zero, gathered, summed
from pipeline.pretrain.device_batches import HostBatch
from pipeline.pretrain.guards import endings
from pipeline.pretrain.guards.fence import Fence
from pipeline.pretrain.guards.loss_window import LossWindow
from pipeline.pretrain.measuring.machine import describe
from pipeline.pretrain.measuring.measurements import Measurements
from pipeline.pretrain.measuring.profiling import StepProfiler
from pipeline.pretrain.progress import Progress
from pipeline.pretrain.resume_checks import require_same_optimizer
from pipeline.pretrain.run_checkpoints import RunCheckpoints, Start
from pipeline.pretrain.schedule import Schedule
from pipeline.pretrain.totals import Totals
from pipeline.runs.config import PretrainConfig, identity_of
from pipeline.runs.directory import RunDirectory
from pipeline.runs.heartbeat import Heartbeat
from pipeline.runs.log.reporter import Reporter
from pipeline.runs.skip_ledger import SkipLedger, SkippedStep
from pipeline.runs.tracking import environment
from pipeline.samples.epochs.index_cache import IndexCache
from pipeline.samples.loader import Step

_INDEX_TIMEOUT_S = 10.0
"""Seconds that an end in good order waits for what is being kept; the next start is as much faster."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the ranks tell each other once a step."""

    sums: list[float]
    """Of the step's losses and right predictions, as `Totals` orders them."""
    counts: dict[str, float]
    """By loss term, the predictions of the next step's global batch."""
    elapsed_s: float
    """Seconds of training before the next step, by rank 0's clock."""
    stop: bool
    """Whether the run was asked to stop."""
    saving_fails: bool
    """Whether too many checkpoints in a row could not be written."""
    is_lost: bool
    """Whether another group has taken the run over."""


class Trainer:
    """One rank of one attempt at a run."""

    def __init__(self, run: RunDirectory, config: PretrainConfig, rank: Rank) -> None:
        self.run, self.config, self.rank = run, config, rank
        self.heartbeat = Heartbeat(run.path, rank.rank, config.guards.stall_timeout_s)
        self.schedule = Schedule(config)
        self.stop_file = StopFile(run.path)
        self.checkpoints = RunCheckpoints(run, config, rank)
        # Before it is looked what there is: from now on, no earlier group adds to it.
        self.fence = Fence(run.path) if rank.rank == 0 else None
        start = self.checkpoints.newest()
        # Read by one and told to the others: a shared file system may show them different states of a file.
        entries = from_rank_zero(SkipLedger(run.path).entries if rank.rank == 0 else None)
        self.ledger = SkipLedger(run.path, entries)
        self.skipped = self.ledger.data
        first_step = 0 if start is None else start.state.step
        self.index_cache = IndexCache(run.index_cache, writes=rank.rank == 0, tell=run.record_event)
        first_data_step = self.skipped.data_step(first_step)
        parts = assemble(config, rank, self.index_cache, first_data_step=first_data_step)
        self.inputs, self.engine, self.weights = parts.inputs, parts.engine, parts.weights
        self.loader, self.evaluation = parts.loader, parts.evaluation
        self.progress, self.losses = Progress(), self._window()
        self.is_resumed = start is not None
        if start is not None:
            require_same_optimizer(run, start.state, self.engine.optimizer_name)
            self._take_over(start)
        self.allowed_changes = [
            {"step": event["step"], "differences": event["differences"]}
            for event in run.events()
            if event["event"] == "changed"
        ]
        self.reporter = Reporter(run, since=self.progress.step, speaks=rank.rank == 0)
        self.profiler = StepProfiler(config.profile, run.path / "profile", rank.rank, self.reporter.history)
        self.clock = StepClock(self.engine.device)
        self.checkpoints.begin(self.inputs, self.reporter, lambda: self._beat("saving"), self.fence)
        workers = gathered({"rank": rank.rank, **describe(self.engine.device)})
        self.measurements = Measurements(run, config, parts, rank, workers, self.reporter)
        self.reporter.history(
            "started",
            step=self.progress.step,
            world_size=rank.world_size,
            optimizer=self.engine.optimizer_name,
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
        try:
            if not self.is_resumed:
                self._evaluate()
                if self.config.guards.spike_score is not None:
                    # Somewhere to go back to.
                    self._save()
            while not self._is_over():
                self._stretch()
            self.checkpoints.wait()
            self.checkpoints.require_saved(self.progress.step)
            self.index_cache.close(_INDEX_TIMEOUT_S)
        finally:
            self.index_cache.close()
            self.profiler.close()
            self.heartbeat.close()
            self.reporter.close()

    def _stretch(self) -> None:
        """Update after update, until the run ends or a loss spike sends it back."""
        first, last = self.progress.step, self.config.num_steps
        self.clock.since_last()
        with closing(self.loader.steps(first, last, self.skipped.data_step)) as steps:
            self._beat("data")
            following: Step[HostBatch] | None = next(steps)
            shared = self._share(self._totals(), following)
            while following is not None:
                step, counts, elapsed_s = following, shared.counts, shared.elapsed_s
                self.measurements.prepare(step)
                self.profiler.step(step.update)
                self.clock.start_step()
                totals = self._forward_and_backward(step, counts)
                self._beat("data")
                with self.clock.waiting(), self.profiler.part("data"):
                    following = next(steps, None)
                shared = self._share(totals, following)
                metrics = totals.means(shared.sums, counts)
                if self._goes_back(step, metrics["loss"]):
                    return
                rate = self.schedule.learning_rate(step.update, elapsed_s)
                update = self._update(step, metrics["loss"], rate)
                self.progress.predicted_tokens += int(counts[next(iter(self.weights))])
                self.progress.elapsed_s = shared.elapsed_s
                with self.profiler.part("logging"):
                    self._report(step, metrics | {"lr": rate, "elapsed_s": elapsed_s}, counts, update)
                self._evaluate_and_save()
                self._stop_if_asked(shared)
                if self._is_over():
                    return

    def _forward_and_backward(self, step: Step[HostBatch], counts: Mapping[str, float]) -> Totals:
        """Add up the gradients of this rank's micro-batches."""
        # The engine averages over ranks and knows nothing of tokens: this turns its average of sums into the
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
        """Tell the other ranks of this step, and of the next one's batch."""
        self._beat("exchange")
        batches = [] if following is None else following.micro_batches
        counts = [sum(batch.data.counts[term] for batch in batches) for term in self.weights]
        of_rank_zero = [0.0, 0.0, 0.0, 0.0]
        if self.rank.rank == 0:
            fails = self.checkpoints.tell()
            asked, lost = self.stop_file.requested(), self.fence is not None and self.fence.is_lost()
            of_rank_zero = [self._elapsed_s(following), float(asked), float(fails), float(lost)]
        with self.profiler.part("exchange"):
            sums, others = summed(totals.sums, [*counts, *of_rank_zero])
        all_counts = dict(zip(self.weights, others, strict=False))
        elapsed_s, stop, fails, lost = others[len(counts) :]
        return Shared(sums, all_counts, elapsed_s, stop > 0, fails > 0, lost > 0)

    def _elapsed_s(self, following: Step[HostBatch] | None) -> float:
        """Seconds of training before the next update. One that is repeated takes what was logged, because the learning
        rate of a run with a time budget depends on it."""
        passed_s = self.progress.elapsed_s + self.clock.since_last()
        recorded = None if following is None else self.reporter.recorded(following.update + 1)
        return passed_s if recorded is None else recorded["elapsed_s"]

    def _update(self, step: Step[HostBatch], loss: float, rate: float) -> Update:
        """Change the weights, unless something is no finite number."""
        self._beat("update")
        is_finite = math.isfinite(loss)
        self.checkpoints.before_update()
        with self.profiler.part("optimizer"):
            update = self.engine.update(rate, discard=not is_finite)
        self.progress.step = step.update + 1
        if is_finite:
            self.losses.add(loss)
        if update.applied:
            self.progress.skipped_updates = 0
        elif self.config.precision != "fp16" or not is_finite:
            # Dynamic loss scaling skips updates on its way to the right scale.
            self._note_skipped(step, loss, update)
        return update

    def _note_skipped(self, step: Step[HostBatch], loss: float, update: Update) -> None:
        """An update was not made. All ranks are here: all of them know the same loss and norm."""
        self.progress.skipped_updates += 1
        mine = [sample for batch in step.micro_batches for sample in batch.data.sample_ids.tolist()]
        samples = gathered(mine)
        self.reporter.event(
            "skipped-update",
            step.update + 1,
            data_step=step.data_step,
            why="the loss" if not math.isfinite(loss) else "the gradient",
            loss=str(loss),
            grad_norm=str(update.grad_norm),
            samples={f"rank {rank}": own for rank, own in enumerate(samples)},
        )
        if self.progress.skipped_updates > self.config.guards.max_skipped_updates:
            raise endings.not_finite(
                self.run,
                self.config,
                step.update,
                self.progress.skipped_updates,
                [],
                [
                    self.skipped.data_step(number)
                    for number in range(step.update + 1 - self.progress.skipped_updates, step.update + 1)
                ],
                from_rank_zero(self.checkpoints.newest_place),
            )

    def _goes_back(self, step: Step[HostBatch], loss: float) -> bool:
        """Whether the loss is a spike; the run then stands where its last checkpoint does, without the step's data."""
        if not self.losses.is_spike(loss) or not math.isfinite(loss):
            return False
        score = self.losses.score(loss)
        spike = SkippedStep(
            at_update=step.update,
            data_step=step.data_step,
            loss=loss,
            score=None if score is None or math.isinf(score) else score,
        )
        self.checkpoints.wait()
        start = self.checkpoints.newest()
        place = None if start is None else start.directory
        if len(self.ledger.entries) >= self.config.guards.max_rollbacks or start is None:
            raise endings.loss_spike(self.run, self.config, spike, self.ledger.entries, place)
        (self.ledger.add if self.rank.rank == 0 else self.ledger.note)(spike)
        from_rank_zero(None)
        self.skipped = self.ledger.data
        self.reporter.event(
            "spike", step.update + 1, **spike.model_dump(mode="json"), back_to=start.state.step
        )
        self.engine.update(0.0, discard=True)
        self._take_over(start)
        return True

    def _take_over(self, start: Start) -> None:
        """Stand where a checkpoint does."""
        self._beat("loading")
        self.engine.restore(start.directory / DEEPSPEED_DIRECTORY)
        state = start.state
        # By another metric the best value so far is unknown.
        goes_on = state.metric == self.config.metric
        self.progress = Progress(
            step=state.step,
            predicted_tokens=state.predicted_tokens,
            elapsed_s=state.elapsed_s,
            held_out=dict(state.held_out),
            best=state.best if goes_on else None,
            evaluations_since_best=state.evaluations_since_best if goes_on else 0,
            skipped_updates=state.skipped_updates,
        )
        self.losses = self._window(state.losses)

    def _report(
        self, step: Step[HostBatch], metrics: Mapping[str, float], counts: Mapping[str, float], update: Update
    ) -> None:
        """Log the step, and compare the ranks now and then."""
        values = dict(metrics) | {
            "grad_norm": update.grad_norm,
            "predicted_tokens": int(counts[next(iter(self.weights))]),
        }
        if update.loss_scale is not None:
            values["loss_scale"] = update.loss_scale
        self.measurements.report(self.progress.step, step, values, self.clock.end_step())

    def _evaluate_and_save(self) -> None:
        """What is due after an update."""
        step, last = self.progress.step, self._is_over()
        if last or step % self.config.evaluation.every_steps == 0:
            self._evaluate()
            last = self._is_over()
        if last or step % self.config.checkpoint.every_steps == 0:
            self._save()

    def _evaluate(self) -> None:
        measure = self.evaluation.measure
        metrics = measure(self.engine, self.rank.rank, self.rank.world_size, lambda: self._beat("evaluation"))
        self.progress.note_evaluation(metrics, self.config.metric, self.config.evaluation.min_improvement)
        self.reporter.write("held_out", self.progress.step, metrics)

    def _save(self) -> None:
        self._beat("saving")
        self.checkpoints.save(self.engine, self._state())

    def _is_over(self) -> bool:
        """Whether the run has made its last update: by its steps, its budget, or because it learns nothing more."""
        patience = self.config.evaluation.patience
        if patience is not None and self.progress.evaluations_since_best >= patience:
            return True
        return self.schedule.is_over(self.progress.step, self.progress.elapsed_s)

    def _stop_if_asked(self, shared: Shared) -> None:
        """Save and end, when the run was asked to; or end, when it cannot be saved.

        Raises:
            PreemptedError: it was asked to.
            StorageError: its checkpoints cannot be written, or another group has taken it over.
        """
        if shared.is_lost:
            if self.fence is not None:
                self.fence.require()
            raise endings.taken_over(self.run)
        if shared.saving_fails:
            raise self.checkpoints.failure()
        if not shared.stop or self._is_over():
            return
        step = self.progress.step
        if step % self.config.checkpoint.every_steps != 0:
            self._save()
        self.checkpoints.wait()
        self.checkpoints.require_saved(step)
        self.index_cache.close(min(_INDEX_TIMEOUT_S, self.config.guards.grace_s / 4))
        self.reporter.history("preempted", step=step, reason=self.stop_file.reason)
        raise endings.preempted(self.run, step, self.stop_file.reason)

    def _state(self) -> TrainerState:
        """What the checkpoint of this moment says."""
        progress, config, info = self.progress, self.config, self.run.info
        return TrainerState(
            step=progress.step,
            samples=config.batch_plan.samples_between(0, progress.step),
            predicted_tokens=progress.predicted_tokens,
            world_size=self.rank.world_size,
            zero_stage=config.zero.stage,
            optimizer=self.engine.optimizer_name,
            data_fingerprint=self.inputs.data_fingerprint,
            store_fingerprints=[store.fingerprint for store in self.inputs.stores],
            identity=identity_of(config),
            held_out=progress.held_out,
            metric=config.metric,
            run_id=info.run_id,
            run_name=info.name,
            elapsed_s=progress.elapsed_s,
            tokens=config.tokens_before(progress.step),
            best=progress.best,
            evaluations_since_best=progress.evaluations_since_best,
            skipped_updates=progress.skipped_updates,
            losses=self.losses.losses,
            skipped_data=list(self.skipped.steps),
            allowed_changes=self.allowed_changes,
            attempt=self.checkpoints.attempt,
        )

    def _window(self, losses: list[float] | None = None) -> LossWindow:
        guards = self.config.guards
        return LossWindow(guards.spike_window, guards.spike_score, losses or ())

    def _totals(self) -> Totals:
        return Totals(self.weights, self.inputs.source_names, self.engine.device)

    def _beat(self, part: str) -> None:
        self.heartbeat.beat(self.progress.step, part)


def run_rank(argument: Mapping[str, Any], rank: Rank) -> None:
    """Body of every worker; `argument` holds `run`, its directory."""
    torch.set_num_threads(rank.num_threads)
    run = RunDirectory(Path(argument["run"]))
    if trains_on_cuda():
        # Before the first exchange, which takes the current device.
        torch.cuda.set_device(rank.local_rank)
    config = from_rank_zero(run.config() if rank.rank == 0 else None)
    Trainer(run, config, rank).train()
