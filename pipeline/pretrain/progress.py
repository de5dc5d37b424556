"""Where a run stands: all that changes from step to step outside the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """A run's state beside weights and optimizer; checkpoints hold it."""

    step: int = 0
    """Updates made."""
    predicted_tokens: int = 0
    elapsed_s: float = 0.0
    """Seconds of training, without start-up; those that a failure made undone and that were repeated count once."""
    held_out_loss: float | None = None
    """Of the newest evaluation."""
    best_loss: float | None = None
    evaluations_since_best: int = 0
    skipped_updates: int = 0
    """Updates in a row, up to now, that were not made because something was no finite number."""

    def note_evaluation(self, loss: float, min_improvement: float) -> None:
        """Take in the loss of an evaluation."""
        self.held_out_loss = loss
        if self.best_loss is None or loss < self.best_loss - min_improvement:
            self.best_loss, self.evaluations_since_best = loss, 0
        else:
            self.evaluations_since_best += 1
