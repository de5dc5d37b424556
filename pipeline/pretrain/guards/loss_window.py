"""Which losses are spikes: a step's loss against the losses of the steps before it.

A pure function of the losses, so that a resumed run, which has the same losses, decides the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import fmean, median

_MAD_TO_SIGMA = 1.4826
"""Standard deviations in a median absolute deviation of normal values (Rousseeuw and Croux 1993, section 1)."""
_MEAN_DEVIATION_TO_SIGMA = 1.2533
"""The same for the mean absolute deviation (Iglewicz and Hoaglin 1993, section 3.4)."""


class LossWindow:
    """The last losses of a run, and how far a new one lies above them."""

    def __init__(self, size: int, threshold: float | None, losses: Iterable[float] = ()) -> None:
        """
        Args:
            size: losses that a new one is compared with.
            threshold: score at which a loss is a spike; None never calls one a spike.
            losses: the window of a run that is resumed, oldest first.
        """
        self._threshold = threshold
        self._losses: deque[float] = deque(losses, maxlen=size)

    @property
    def losses(self) -> list[float]:
        """The window, oldest first; what a checkpoint keeps."""
        return list(self._losses)

    def score(self, loss: float) -> float | None:
        """The robust z-score of a loss: standard deviations above the window's median, negative below it.

        Half of the window may be outliers without changing it (Iglewicz and Hoaglin 1993, section 3.3). None until
        the window is full; infinite for a loss that is not finite.
        """
        if len(self._losses) < (self._losses.maxlen or 0):
            return None
        if not math.isfinite(loss):
            return math.inf
        middle = median(self._losses)
        deviations = [abs(one - middle) for one in self._losses]
        # More than half of the losses may be equal, in tests and in toys; the mean still sees the others.
        sigma = _MAD_TO_SIGMA * median(deviations) or _MEAN_DEVIATION_TO_SIGMA * fmean(deviations)
        if sigma == 0.0:
            return 0.0 if loss == middle else math.copysign(math.inf, loss - middle)
        return (loss - middle) / sigma

    def is_spike(self, loss: float) -> bool:
        """Whether a loss lies so far above the window that its step is to be undone."""
        score = self.score(loss)
        return self._threshold is not None and score is not None and score >= self._threshold

    def add(self, loss: float) -> None:
        """Add the loss of an update that was made, if it is finite."""
        if math.isfinite(loss):
            self._losses.append(loss)
