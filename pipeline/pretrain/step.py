"""One update of a run: micro-batches forward and backward, one exchange with the other ranks, and the new weights.

Ranks share only the gradients and a few numbers. The exchange of a step also carries the predictions of the next one,
so that its losses can be divided by the predictions of the whole global batch before any gradient is there.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass

import torch

from cluster.collectives import summed
from pipeline.engine.interface import Update
from pipeline.pretrain import endings
from pipeline.pretrain.assembly import Parts, seed_dropout
from pipeline.pretrain.batches import HostBatch, Totals
from pipeline.pretrain.measure import StepClock
from pipeline.pretrain.schedule import Schedule
from pipeline.pretrain.spikes import report_skipped_update, require_few_skipped
from pipeline.run.log.kinds import LogKind
from pipeline.samples.loader import Step


@dataclass(frozen=True, slots=True)
class Signals:
    """The numbers that rank 0 sends to the other ranks, which add nothing but zeros."""

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
    """The numbers that every rank knows after the exchange."""

    sums: list[float]
    """The step's losses and right predictions over all ranks, as `Totals` orders them."""
    counts: dict[str, float]
    """By loss term, the predictions of the next step's global batch."""
    signals: Signals


class Updates:
    """The updates of one rank; all ranks make the same ones."""

    def __init__(self, parts: Parts, schedule: Schedule) -> None:
        self._parts, self._schedule = parts, schedule
        self._config, self._data, self._engine = parts.claim.config, parts.data, parts.engine
        self._clock = StepClock(parts.engine.device)

    def until_rollback(self) -> Generator[Signals, None, None]:
        """Make one update after another, to the last step of the configuration or until a loss spike rolls the run
        back. Yields rank 0's signals after each update.

        Raises:
            LossSpikeError: there was one spike too many.
            NonFiniteError: too many updates in a row were skipped.
            TakenOverError: another group has taken the run over; nothing of this step is written.
        """
        parts, clock, profiler = self._parts, self._clock, self._parts.profiler
        clock.since_last()
        first, last = parts.counters.step, self._config.num_steps
        with closing(self._data.loader.steps(first, last, parts.spikes.skipped.data_step)) as steps:
            parts.beat("data")
            following: Step[HostBatch] | None = next(steps)
            shared = self._share(self._totals(), following)
            while following is not None:
                step, counts, elapsed_s = following, shared.counts, shared.signals.elapsed_s
                parts.measurements.prepare(step)
                profiler.step(step.update)
                clock.start_step()
                totals = self._forward_and_backward(step, counts)
                parts.beat("data")
                with clock.waiting(), profiler.part("data"):
                    following = next(steps, None)
                shared = self._share(totals, following)
                metrics = totals.means(shared.sums, counts)
                if self._rolls_back(step, metrics["loss"]):
                    return
                rate = self._schedule.learning_rate(step.update, elapsed_s)
                update = self._update(step, metrics["loss"], rate)
                predicted = int(counts[next(iter(self._data.weights))])
                parts.counters.predicted_tokens += predicted
                parts.counters.elapsed_s = shared.signals.elapsed_s
                values = metrics | {"lr": rate, "elapsed_s": elapsed_s, "grad_norm": update.grad_norm}
                values["predicted_tokens"] = predicted
                if update.loss_scale is not None:
                    values["loss_scale"] = update.loss_scale
                with profiler.part("logging"):
                    parts.measurements.report(parts.counters.step, step, values, clock.end_step())
                yield shared.signals

    def _forward_and_backward(self, step: Step[HostBatch], counts: Mapping[str, float]) -> Totals:
        """Add up the gradients of this rank's micro-batches."""
        parts, engine = self._parts, self._engine
        # The engine averages over ranks and knows nothing of tokens: these scales turn its average of sums into the
        # sum over the global batch divided by the predictions of each term.
        scales = {
            term: weight * parts.claim.rank.world_size / max(counts[term], 1.0)
            for term, weight in self._data.weights.items()
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

    def _share(self, totals: Totals, following: Step[HostBatch] | None) -> Shared:
        """Exchange this step's losses, the next batch's predictions and rank 0's signals, in one all-reduce."""
        parts, fence = self._parts, self._parts.claim.fence
        parts.beat("exchange")
        batches = [] if following is None else following.micro_batches
        counts = [float(sum(batch.data.counts[term] for batch in batches)) for term in self._data.weights]
        signals = Signals()
        if parts.claim.rank.rank == 0:
            saving_fails = parts.checkpoints.log_saves()
            is_lost = fence is not None and fence.is_lost(now=saving_fails)
            elapsed_s = self._elapsed_s(following)
            signals = Signals(elapsed_s, parts.stop_file.requested(), saving_fails, is_lost)
        with parts.profiler.part("exchange"):
            sums, others = summed(totals.sums, [*counts, *map(float, astuple(signals))])
        elapsed_s, *flags = others[len(counts) :]
        signals = Signals(elapsed_s, *(flag > 0 for flag in flags))
        if signals.is_lost:
            if fence is not None:
                fence.require()
            raise endings.taken_over(parts.claim.run)
        return Shared(sums, dict(zip(self._data.weights, others, strict=False)), signals)

    def _elapsed_s(self, following: Step[HostBatch] | None) -> float:
        """Seconds of training before the next update. One that is repeated takes what was logged, because the learning
        rate of a run with a time budget depends on it."""
        passed_s = self._parts.counters.elapsed_s + self._clock.since_last()
        recorded = None if following is None else self._parts.reporter.recorded(following.update + 1)
        return passed_s if recorded is None else recorded["elapsed_s"]

    def _rolls_back(self, step: Step[HostBatch], loss: float) -> bool:
        """Whether the loss is a spike; the run is then rolled back to its last checkpoint, and leaves the step's data
        out."""
        parts = self._parts
        spike = parts.spikes.find(step.update, step.data_step, loss)
        if spike is None:
            return False
        parts.checkpoints.wait()
        start = parts.claim.find_start()
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
        if is_finite:
            parts.spikes.add(loss)
        if update.applied:
            counters.skipped_updates = 0
        elif config.precision != "fp16" or not is_finite:
            # Dynamic loss scaling skips updates on its way to the right scale.
            counters.skipped_updates += 1
            report_skipped_update(parts.reporter, step, loss, update.grad_norm)
            require_few_skipped(
                parts.claim.run,
                config,
                counters.step,
                counters.skipped_updates,
                parts.spikes.skipped.data_step,
                lambda: parts.checkpoints.newest_place,
            )
        return update

    def _totals(self) -> Totals:
        return Totals(self._data.weights, self._data.inputs.source_names, self._engine.device)
