"""The course of one rank: updates, and between them evaluations, checkpoints and the end. Every rank runs this file.

An update is micro-batches forward and backward, one exchange with the other ranks, and the new weights. Ranks share
only the gradients and a few numbers. The exchange of a step also carries the predictions of the next one, so that its
losses can be divided by the predictions of the whole global batch before any gradient is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from cluster import logs
from cluster.artefacts.errors import PreemptedError
from cluster.collectives import from_rank_zero, summed
from cluster.copies import release
from pipeline.checkpoint.checkpoint import DEEPSPEED_DIRECTORY, Counters, TrainerState
from pipeline.pretrain.batches import Totals, seed_dropout
from pipeline.pretrain.ownership import taken_over
from pipeline.pretrain.run_checkpoints import find_start
from pipeline.pretrain.schedule import Schedule
from pipeline.pretrain.spikes import LossWindow, loss_spike, not_finite, report_skipped_update
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind
from pipeline.run.skipped_data import SkipLedger, SkippedStep

if TYPE_CHECKING:
    # The parts that a trainer is made of; `assembly.py` makes them.
    from cluster.group import Rank
    from cluster.stopping import StopFile
    from pipeline.engine.deepspeed.engine import Engine
    from pipeline.engine.interface import Update
    from pipeline.pretrain.batches import HostBatch
    from pipeline.pretrain.evaluation import Evaluation
    from pipeline.pretrain.measure import Measurements
    from pipeline.pretrain.ownership import Fence
    from pipeline.pretrain.run_checkpoints import RunCheckpoints
    from pipeline.pretrain.step_timer import StepTimer
    from pipeline.run.config import PretrainConfig
    from pipeline.run.directory import RunDirectory
    from pipeline.run.log.log import RunLog
    from pipeline.run.state import Heartbeat
    from pipeline.samples.loader import Step, StepLoader


class Exchange(NamedTuple):
    """The numbers that every rank knows after an exchange; all but the sums and counts are rank 0's."""

    sums: list[float]
    """The step's losses and right predictions over all ranks, as `Totals` orders them."""
    counts: dict[str, float]
    """By loss term, the predictions of the next step's global batch."""
    elapsed_s: float
    """Seconds of training before the next step."""
    stop: bool
    """Whether the run was asked to stop."""
    saving_fails: bool
    """Whether too many checkpoints in a row could not be written."""


@dataclass
class Trainer:
    """One rank of one attempt at a run."""

    run: RunDirectory
    config: PretrainConfig
    rank: Rank
    fence: Fence | None
    """On rank 0: the ownership token of this group; earlier groups write nothing any more."""
    loader: StepLoader[HostBatch]
    evaluation: Evaluation
    engine: Engine
    heartbeat: Heartbeat
    log: RunLog
    stop_file: StopFile
    skipped: SkipLedger
    """Finds the global batch that each update reads."""
    checkpoints: RunCheckpoints
    measurements: Measurements
    timer: StepTimer
    counters: Counters = field(default_factory=Counters.at_start)

    def __post_init__(self) -> None:
        self._schedule = Schedule(self.config)
        self._watch_losses([])
        self._weights = self.evaluation.weights

    def restore(self, state: TrainerState) -> None:
        """Restore the engine, the counters and the loss window from the checkpoint of a state."""
        self.counters = state.counters(self.config.metric)
        # At the checkpoint's step: heartbeats count the updates since the first one.
        self._beat("loading")
        checkpoint = self.checkpoints.store.fetch(state.step, deep=False)
        self.engine.restore(checkpoint / DEEPSPEED_DIRECTORY)
        release(checkpoint)
        self._watch_losses(state.losses)

    def _watch_losses(self, losses: list[float]) -> None:
        """Begin with a loss window, as a checkpoint holds it; all ranks have equal ones, and so decide alike."""
        self._window = LossWindow(self.config.guards.spike_window, self.config.guards.spike_score, losses)

    def train(self, *, is_resumed: bool) -> None:
        """Run from the counters' step to the end.

        Raises:
            PreemptedError: the run was asked to stop, and has saved.
            LossSpikeError: there was one spike too many.
            NonFiniteError: too many updates in a row were skipped.
            TakenOverError: another group has taken the run over; nothing of this step is written.
            StorageError: its checkpoints cannot be written.
        """
        if not is_resumed:
            self._evaluate()
            if self.config.guards.spike_score is not None:
                # A checkpoint to roll back to.
                self._save()
        timer = self.timer
        # A rollback begins again with other data.
        while not self._is_over():
            timer.since_last()
            first, last = self.counters.step, self.config.num_steps
            with closing(self.loader.steps(first, last, self.skipped.data_step)) as steps:
                self._beat("data")
                following: Step[HostBatch] | None = next(steps)
                known = self._exchange(self._totals(), following)
                while following is not None and not self._is_over():
                    step, counts, elapsed_s = following, known.counts, known.elapsed_s
                    self.measurements.prepare(step)
                    timer.start_step(step.update)
                    totals = self._forward_and_backward(step, counts)
                    self._beat("data")
                    with timer.part("data"):
                        following = next(steps, None)
                    known = self._exchange(totals, following)
                    metrics = totals.means(known.sums, counts)
                    loss = metrics["loss"]
                    if self._rolls_back(step, loss):
                        break
                    rate = self._schedule.learning_rate(step.update, elapsed_s)
                    self._beat("update")
                    with timer.part("optimizer"):
                        update = self.engine.update(rate, discard=not math.isfinite(loss))
                    predicted = int(counts[next(iter(self._weights))])
                    self.counters.predicted_tokens += predicted
                    self.counters.elapsed_s = known.elapsed_s
                    self._count(step, loss, update)
                    values = metrics | {"lr": rate, "elapsed_s": known.elapsed_s}
                    values |= {"grad_norm": update.grad_norm, "predicted_tokens": predicted}
                    if update.loss_scale is not None:
                        values["loss_scale"] = update.loss_scale
                    timer.end_step()
                    with timer.part("logging"):
                        self.measurements.report(self.counters.step, step, values, timer)
                    self._evaluate_and_save(known)
        self.checkpoints.require_saved(self.counters.step)

    def _forward_and_backward(self, step: Step[HostBatch], counts: Mapping[str, float]) -> Totals:
        """Add up the gradients of this rank's micro-batches."""
        engine = self.engine
        # The engine averages over ranks and knows nothing of tokens: these scales turn its average of sums into the
        # sum over the global batch divided by the predictions of each term.
        scales = {
            term: weight * self.rank.world_size / max(counts[term], 1.0)
            for term, weight in self._weights.items()
        }
        totals = self._totals()
        for number, batch in step.micro_batches.items():
            self._beat("forward")
            seed_dropout(self.config.seed, step.update, number)
            with self.timer.part("forward"):
                losses, correct = engine(**batch.on(engine.device))
                loss = torch.stack([losses[term] * scale for term, scale in scales.items()]).sum()
            with self.timer.part("backward"):
                engine.backward(loss, last=number == max(step.micro_batches))
            totals.add(losses, correct, batch.sources_on(engine.device))
        return totals

    def _exchange(self, totals: Totals, following: Step[HostBatch] | None) -> Exchange:
        """Exchange this step's losses, the next batch's predictions and rank 0's numbers, in one all-reduce."""
        fence = self.fence
        self._beat("exchange")
        batches = [] if following is None else following.micro_batches.values()
        counts = [float(sum(batch.counts[term] for batch in batches)) for term in self._weights]
        # Other ranks than 0 add nothing but zeros.
        own = [0.0] * 4
        if fence is not None:
            passed_s = self.counters.elapsed_s + self.timer.since_last()
            # An update that is repeated takes the time that was logged, because the learning rate of a run with a time
            # budget depends on it.
            recorded = None if following is None else self.log.recorded(following.update + 1)
            elapsed_s = passed_s if recorded is None else recorded["elapsed_s"]
            saving_fails = self.checkpoints.log_saves()
            flags = self.stop_file.requested(), saving_fails, fence.is_lost(now=saving_fails)
            own = [elapsed_s, *map(float, flags)]
        with self.timer.part("exchange"):
            sums, others = summed(totals.sums, [*counts, *own])
        elapsed_s, stop, saving_fails, is_lost = others[len(counts) :]
        if is_lost:
            if fence is not None:
                fence.require()
            raise taken_over(self.run)
        shared = dict(zip(self._weights, others, strict=False))
        return Exchange(sums, shared, elapsed_s, bool(stop), bool(saving_fails))

    def _rolls_back(self, step: Step[HostBatch], loss: float) -> bool:
        """Whether the loss is a spike; the run is then rolled back to its last checkpoint, and leaves the step's data
        out."""
        if not math.isfinite(loss) or not self._window.is_spike(loss):
            return False
        score = self._window.score(loss)
        if score == math.inf:
            score = None
        spike = SkippedStep(at_update=step.update, data_step=step.data_step, loss=loss, score=score)
        self.checkpoints.wait()
        store, before = self.checkpoints.store, self.skipped.entries
        start = find_start(self.run, self.rank, store)
        if start is None or len(before) >= self.config.guards.max_rollbacks:
            checkpoint = None if start is None else store.fetch(start.step, deep=False)
            raise loss_spike(self.run, self.config, (*before, spike), checkpoint)
        (self.skipped.add if self.rank.rank == 0 else self.skipped.note)(spike)
        # It is on disk before any rank goes on.
        from_rank_zero(None)
        details = spike.model_dump(mode="json")
        self.log.event(LogKind.SPIKE, step.update + 1, {**details, "back_to": start.step})
        self.engine.update(0.0, discard=True)
        self.restore(start)
        return True

    def _count(self, step: Step[HostBatch], loss: float, update: Update) -> None:
        """Count an update, also one that was skipped because the loss or a gradient is not finite."""
        counters, config = self.counters, self.config
        counters.step = step.update + 1
        samples = config.batch_plan.samples_at(step.update)
        counters.samples += samples
        counters.tokens += samples * config.token_plan.sequence_length_at(step.update)
        self._window.add(loss)
        if update.applied:
            counters.skipped_updates = 0
        elif config.precision != "fp16" or not math.isfinite(loss):
            # Dynamic loss scaling skips updates on its way to the right scale.
            counters.skipped_updates += 1
            report_skipped_update(self.log, step, loss, update.grad_norm)
            if (number := counters.skipped_updates) > config.guards.max_skipped_updates:
                skipped = [*map(self.skipped.data_step, range(counters.step - number, counters.step))]
                checkpoint = from_rank_zero(self.checkpoints.newest_place)
                raise not_finite(self.run, config, step.update, skipped, checkpoint)

    def _totals(self) -> Totals:
        return Totals(self._weights, self.evaluation.sources, self.engine.device)

    def _evaluate_and_save(self, known: Exchange) -> None:
        """Evaluate and save, where either is due after this update; save and end, when the run was asked to."""
        run, step = self.run, self.counters.step
        last = self._is_over()
        if last or step % self.config.evaluation.every_steps == 0:
            self._evaluate()
            last = self._is_over()
        is_due = last or step % self.config.checkpoint.every_steps == 0
        if is_due:
            self._save()
        if known.saving_fails:
            raise self.checkpoints.failure()
        if not known.stop or last:
            return
        if not is_due:
            self._save()
        self.checkpoints.require_saved(step)
        reason = self.stop_file.reason
        self.log.history(Event.PREEMPTED, step=step, reason=reason)
        raise PreemptedError(
            f"{run.path.name} stopped at step {step}, as asked: {reason or 'a request in its directory'}.",
            kept=f"the checkpoint of step {step}; nothing has to be computed again",
            next_step=f"cloze resume {run.typed}",
        )

    def _evaluate(self) -> None:
        config = self.config
        metrics = self.evaluation.measure(self.engine, self.rank, lambda: self._beat("evaluation"))
        self.counters.add_evaluation(metrics, config.metric, config.evaluation.min_improvement)
        self.log.write(LogKind.HELD_OUT, self.counters.step, metrics)

    def _beat(self, part: str) -> None:
        """Give a sign of life, in a part of a step."""
        logs.bind(step=self.counters.step)
        self.heartbeat.beat(self.counters.step, part)

    def _save(self) -> None:
        self._beat("saving")
        self.checkpoints.save(self.engine, self.counters, self._window.losses, self.skipped.steps)

    def _is_over(self) -> bool:
        """Whether the run has made its last update: by its steps, its budget, or its patience without improvement."""
        patience, counters = self.config.evaluation.patience, self.counters
        if patience is not None and counters.evaluations_since_best >= patience:
            return True
        return self._schedule.is_over(counters.step, counters.elapsed_s)
