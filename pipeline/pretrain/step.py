"""The course of one rank: updates, and between them evaluations, checkpoints and the end. Every rank runs this file.

An update is micro-batches forward and backward, one exchange with the other ranks, and the new weights. Ranks share
only the gradients and a few numbers. The exchange of a step also carries the predictions of the next one, so that its
losses can be divided by the predictions of the whole global batch before any gradient is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import torch

from cluster.artefacts.errors import PreemptedError
from cluster.collectives import from_rank_zero, summed
from cluster.group import Rank
from pipeline.engine.device import deterministic_algorithms, trains_on_cuda
from pipeline.engine.interface import Update
from pipeline.pretrain.assembly import Parts, assemble, find_start, seed_dropout
from pipeline.pretrain.batches import HostBatch, Totals
from pipeline.pretrain.lost_workers import memory_explained
from pipeline.pretrain.measure import StepClock
from pipeline.pretrain.ownership import taken_over
from pipeline.pretrain.schedule import Schedule
from pipeline.pretrain.spikes import not_finite, report_skipped_update
from pipeline.run.directory import RunDirectory
from pipeline.run.events import Event
from pipeline.run.log.lines import LogKind
from pipeline.samples.loader import Step


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


class Trainer:
    """One rank of one attempt at a run."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._config, self._engine = parts, parts.config, parts.engine
        self._schedule = Schedule(self._config)
        self._clock = StepClock(parts.engine.device)

    def train(self, *, is_resumed: bool) -> None:
        """Run from where the parts stand to the end.

        Raises:
            PreemptedError: the run was asked to stop, and has saved.
            LossSpikeError: there was one spike too many.
            NonFiniteError: too many updates in a row were skipped.
            TakenOverError: another group has taken the run over; nothing of this step is written.
            StorageError: its checkpoints cannot be written.
        """
        if not is_resumed:
            self._evaluate()
            if self._config.guards.spike_score is not None:
                # A checkpoint to roll back to.
                self._save()
        while not self._is_over():
            self._train_until_rollback()
        self._parts.checkpoints.require_saved(self._parts.counters.step)

    def _train_until_rollback(self) -> None:
        """Make one update after another, to the end of the run or until a loss spike rolls it back."""
        parts, clock, profiler = self._parts, self._clock, self._parts.profiler
        clock.since_last()
        first, last = parts.counters.step, self._config.num_steps
        with closing(parts.loader.steps(first, last, parts.spikes.skipped.data_step)) as steps:
            parts.beat("data")
            following: Step[HostBatch] | None = next(steps)
            known = self._exchange(self._totals(), following)
            while following is not None and not self._is_over():
                step, counts, elapsed_s = following, known.counts, known.elapsed_s
                parts.measurements.prepare(step)
                profiler.step(step.update)
                clock.start_step()
                totals = self._forward_and_backward(step, counts)
                parts.beat("data")
                with clock.waiting(), profiler.part("data"):
                    following = next(steps, None)
                known = self._exchange(totals, following)
                metrics = totals.means(known.sums, counts)
                if self._rolls_back(step, metrics["loss"]):
                    return
                rate = self._schedule.learning_rate(step.update, elapsed_s)
                update = self._update(step, metrics["loss"], rate)
                predicted = int(counts[next(iter(parts.weights))])
                parts.counters.predicted_tokens += predicted
                parts.counters.elapsed_s = known.elapsed_s
                values = metrics | {"lr": rate, "elapsed_s": known.elapsed_s, "grad_norm": update.grad_norm}
                values["predicted_tokens"] = predicted
                if update.loss_scale is not None:
                    values["loss_scale"] = update.loss_scale
                with profiler.part("logging"):
                    parts.measurements.report(parts.counters.step, step, values, clock.end_step())
                self._evaluate_and_save(known)

    def _forward_and_backward(self, step: Step[HostBatch], counts: Mapping[str, float]) -> Totals:
        """Add up the gradients of this rank's micro-batches."""
        parts, engine = self._parts, self._engine
        # The engine averages over ranks and knows nothing of tokens: these scales turn its average of sums into the
        # sum over the global batch divided by the predictions of each term.
        scales = {
            term: weight * parts.rank.world_size / max(counts[term], 1.0)
            for term, weight in parts.weights.items()
        }
        totals = self._totals()
        for batch in step.micro_batches:
            parts.beat("forward")
            seed_dropout(self._config.seed, step.update, batch.number)
            with self._clock.forward(), parts.profiler.part("forward"):
                losses, correct = engine(**batch.data.on(engine.device))
                loss = torch.stack([losses[term] * scale for term, scale in scales.items()]).sum()
            with parts.profiler.part("backward"):
                engine.backward(loss, last=batch is step.micro_batches[-1])
            totals.add(losses, correct, batch.data.sources_on(engine.device))
        return totals

    def _exchange(self, totals: Totals, following: Step[HostBatch] | None) -> Exchange:
        """Exchange this step's losses, the next batch's predictions and rank 0's numbers, in one all-reduce."""
        parts, fence = self._parts, self._parts.fence
        parts.beat("exchange")
        batches = [] if following is None else following.micro_batches
        counts = [float(sum(batch.data.counts[term] for batch in batches)) for term in parts.weights]
        # Other ranks than 0 add nothing but zeros.
        own = [0.0] * 4
        if fence is not None:
            passed_s = parts.counters.elapsed_s + self._clock.since_last()
            # An update that is repeated takes the time that was logged, because the learning rate of a run with a time
            # budget depends on it.
            recorded = None if following is None else parts.reporter.recorded(following.update + 1)
            elapsed_s = passed_s if recorded is None else recorded["elapsed_s"]
            saving_fails = parts.checkpoints.log_saves()
            flags = parts.stop_file.requested(), saving_fails, fence.is_lost(now=saving_fails)
            own = [elapsed_s, *map(float, flags)]
        with parts.profiler.part("exchange"):
            sums, others = summed(totals.sums, [*counts, *own])
        elapsed_s, stop, saving_fails, is_lost = others[len(counts) :]
        if is_lost:
            if fence is not None:
                fence.require()
            raise taken_over(parts.run)
        shared = dict(zip(parts.weights, others, strict=False))
        return Exchange(sums, shared, elapsed_s, bool(stop), bool(saving_fails))

    def _rolls_back(self, step: Step[HostBatch], loss: float) -> bool:
        """Whether the loss is a spike; the run is then rolled back to its last checkpoint, and leaves the step's data
        out."""
        parts = self._parts
        spike = parts.spikes.find(step.update, step.data_step, loss)
        if spike is None:
            return False
        parts.checkpoints.wait()
        start = find_start(parts.run, parts.rank, parts.store)
        parts.spikes.leave_out(spike, None if start is None else start.directory)
        assert start is not None
        details = spike.model_dump(mode="json")
        parts.reporter.event(LogKind.SPIKE, step.update + 1, **details, back_to=start.state.step)
        self._engine.update(0.0, discard=True)
        parts.restore(start)
        return True

    def _update(self, step: Step[HostBatch], loss: float, rate: float) -> Update:
        """Update the weights, or skip the update where the loss or a gradient is not finite."""
        parts, counters, config = self._parts, self._parts.counters, self._config
        parts.beat("update")
        is_finite = math.isfinite(loss)
        with parts.profiler.part("optimizer"):
            update = self._engine.update(rate, discard=not is_finite)
        counters.step = step.update + 1
        samples = config.batch_plan.samples_at(step.update)
        counters.samples += samples
        counters.tokens += samples * config.sequence_length_at(step.update)
        parts.spikes.window.add(loss)
        if update.applied:
            counters.skipped_updates = 0
        elif config.precision != "fp16" or not is_finite:
            # Dynamic loss scaling skips updates on its way to the right scale.
            counters.skipped_updates += 1
            report_skipped_update(parts.reporter, step, loss, update.grad_norm)
            if (number := counters.skipped_updates) > config.guards.max_skipped_updates:
                skipped = [*map(parts.spikes.skipped.data_step, range(counters.step - number, counters.step))]
                checkpoint = from_rank_zero(parts.checkpoints.newest_place)
                raise not_finite(parts.run, config, step.update, skipped, checkpoint)
        return update

    def _totals(self) -> Totals:
        return Totals(self._parts.weights, self._parts.inputs.source_names, self._engine.device)

    def _evaluate_and_save(self, known: Exchange) -> None:
        """Evaluate and save, where either is due after this update; save and end, when the run was asked to."""
        parts, run, step = self._parts, self._parts.run, self._parts.counters.step
        last = self._is_over()
        if last or step % self._config.evaluation.every_steps == 0:
            self._evaluate()
            last = self._is_over()
        is_due = last or step % self._config.checkpoint.every_steps == 0
        if is_due:
            self._save()
        if known.saving_fails:
            raise parts.checkpoints.failure()
        if not known.stop or last:
            return
        if not is_due:
            self._save()
        parts.checkpoints.require_saved(step)
        reason = parts.stop_file.reason
        parts.reporter.history(Event.PREEMPTED, step=step, reason=reason)
        raise PreemptedError(
            f"{run.path.name} stopped at step {step}, as asked: {reason or 'a request in its directory'}.",
            kept=f"the checkpoint of step {step}; nothing has to be computed again",
            next_step=f"cloze resume {run.typed}",
        )

    def _evaluate(self) -> None:
        parts, config = self._parts, self._config
        metrics = parts.evaluation.measure(parts.engine, parts.rank, lambda: parts.beat("evaluation"))
        parts.counters.add_evaluation(metrics, config.metric, config.evaluation.min_improvement)
        parts.reporter.write(LogKind.HELD_OUT, parts.counters.step, metrics)

    def _save(self) -> None:
        self._parts.beat("saving")
        self._parts.checkpoints.save(self._engine, self._parts.counters, self._parts.spikes)

    def _is_over(self) -> bool:
        """Whether the run has made its last update: by its steps, its budget, or its patience without improvement."""
        patience, counters = self._config.evaluation.patience, self._parts.counters
        if patience is not None and counters.evaluations_since_best >= patience:
            return True
        return self._schedule.is_over(counters.step, counters.elapsed_s)


def run_rank(directory: Path, rank: Rank) -> None:
    """Body of every worker: train the run in a directory as far as it goes."""
    torch.set_num_threads(rank.num_threads)
    run = RunDirectory(directory)
    # Where a GPU is full already, the first exchange is what fails.
    with memory_explained(run, rank.rank), ExitStack() as ending:
        if trains_on_cuda():
            # Before the first exchange, which takes the current device.
            torch.cuda.set_device(rank.local_rank)
        config = from_rank_zero(run.config() if rank.rank == 0 else None)
        ending.enter_context(deterministic_algorithms(config.compute.deterministic))
        parts, is_resumed = assemble(run, config, rank, ending)
        Trainer(parts).train(is_resumed=is_resumed)
