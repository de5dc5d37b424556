"""The counters of a run: all that changes from step to step outside the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.checkpoint.checkpoint import TrainerState
from pipeline.objectives.terms import is_better


@dataclass(slots=True)
class Counters:
    """A run's state beside weights and optimizer; checkpoints hold it."""

    step: int = 0
    """Updates made."""
    samples: int = 0
    tokens: int = 0
    """Read so far, as `TrainerState` has it; a resumption may have changed the batch."""
    predicted_tokens: int = 0
    elapsed_s: float = 0.0
    """Seconds of training, without start-up; seconds that a failure undid and that were repeated count once."""
    held_out: dict[str, float] = field(default_factory=dict)
    """The finite metrics of the newest evaluation, by name."""
    best: float | None = None
    """Best value, so far, of the metric that decides; always finite."""
    evaluations_since_best: int = 0
    skipped_updates: int = 0
    """Updates in a row, up to now, that were skipped because the loss or a gradient was not finite."""

    @classmethod
    def of(cls, state: TrainerState, metric: str) -> Counters:
        """The counters that a checkpoint holds.

        Args:
            metric: the metric that decides from now on; by another than the checkpoint's, no best value is known yet.
        """
        same = state.metric == metric
        return cls(
            step=state.step,
            samples=state.samples,
            tokens=state.tokens,
            predicted_tokens=state.predicted_tokens,
            elapsed_s=state.elapsed_s,
            held_out=dict(state.held_out),
            best=state.best if same else None,
            evaluations_since_best=state.evaluations_since_best if same else 0,
            skipped_updates=state.skipped_updates,
        )

    def note_evaluation(self, metrics: Mapping[str, float], metric: str, min_improvement: float) -> None:
        """Count an evaluation.

        A value that is not finite is never the best, and counts as an evaluation without improvement, also before the
        first finite one: a network that only gives NaN runs out of patience like one that learns nothing.

        Args:
            metric: the metric that decides.
        """
        self.held_out = {name: value for name, value in metrics.items() if math.isfinite(value)}
        value = self.held_out.get(metric)
        if value is not None and (self.best is None or is_better(metric, value, self.best, min_improvement)):
            self.best, self.evaluations_since_best = value, 0
        else:
            self.evaluations_since_best += 1
