"""The loss of a training, as it is tracked."""

from __future__ import annotations

from pipeline.run.tracking import TrackedRun


class LossCurve:
    """Sends the mean loss of some updates at a time."""

    def __init__(self, tracked: TrackedRun, name: str, every: int) -> None:
        self._tracked = tracked
        self._name = name
        self._every = every
        self._losses: list[float] = []

    def add(self, update: int, loss: float) -> None:
        """Take the loss of an update."""
        self._losses.append(loss)
        if update % self._every == 0:
            self.send(update)

    def send(self, update: int) -> None:
        """Send the mean of the losses that were not sent yet."""
        if self._losses:
            self._tracked.log_metrics({self._name: sum(self._losses) / len(self._losses)}, update)
        self._losses = []
