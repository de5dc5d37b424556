"""The learning rate of an update: a pure function, so that a resumed run has nothing to restore."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.run.config import PretrainConfig
    from pipeline.run.settings import ScheduleConfig

    Shape = Callable[[float, ScheduleConfig], float]


SHAPES: Mapping[str, Shape] = {
    "linear": lambda progress, schedule: 1.0 - progress,
    # (1 + cos(pi progress)) / 2, without its cancellation near the end.
    "cosine": lambda progress, schedule: math.cos(math.pi / 2 * progress) ** 2,
    "polynomial": lambda progress, schedule: (1.0 - progress) ** schedule.power,
    "constant": lambda progress, schedule: 1.0,
    "wsd": lambda progress, schedule: min(1.0, (1.0 - progress) / schedule.decay_share),
}
"""By `schedule.kind`: the learning rate as a share of its peak, from the progress of the decay (0 at the end of the
warm-up, 1 after the last update)."""


class Schedule:
    """The learning rates of a run."""

    def __init__(self, config: PretrainConfig) -> None:
        self._config = config
        self._tokens = config.schedule.warmup_tokens
        self._warmup = config.schedule.warmup_steps
        if self._tokens is not None:
            self._warmup = bisect_left(range(config.num_steps), self._tokens, key=config.tokens_before)

    def learning_rate(self, step: int, elapsed_s: float = 0.0) -> float:
        """Learning rate of update number `step` (0 is the first).

        Warm-up reaches the peak at step `warmup_steps`; the first update already moves (1 / (warmup_steps + 1)). The
        rate would be `final_share` of the peak after the last update, so that the last update moves too.

        Args:
            elapsed_s: seconds that the run has trained for; matters for runs with a time budget.
        """
        schedule, peak = self._config.schedule, self._config.optimizer.lr
        if step < self._warmup:
            if self._tokens is not None:
                return peak * min(1.0, self._config.tokens_before(step + 1) / self._tokens)
            return peak * (step + 1) / (self._warmup + 1)
        if schedule.kind == "inverse_sqrt":
            first = max(1, self._warmup, schedule.constant_steps)
            return max(peak * schedule.final_share, peak * math.sqrt(first / max(first, step)))
        progress = max(
            self._progress(step), self._progress(self._time_share(step, elapsed_s) * self._config.num_steps)
        )
        share = SHAPES[schedule.kind](min(1.0, max(0.0, progress)), schedule)
        return peak * (schedule.final_share + (1.0 - schedule.final_share) * share)

    def _progress(self, step: float) -> float:
        """Progress of the decay at a step: 0 at the end of the warm-up, 1 after the last update."""
        if (horizon := self._config.schedule.decay_tokens) is not None:
            passed, first = (self._config.tokens_before(round(place)) for place in (step, self._warmup))
            return (passed - first) / (horizon - first)
        return (step - self._warmup) / (self._config.num_steps - self._warmup)

    def is_over(self, step: int, elapsed_s: float) -> bool:
        """Whether the run has ended before update number `step`, by its steps or by its time."""
        return step >= self._config.num_steps or (step > 0 and self._time_share(step, elapsed_s) >= 1.0)

    def _time_share(self, step: int, elapsed_s: float) -> float:
        """Share of the time budget that is spent, at most the share of `budget.min_steps` that is made."""
        budget = self._config.budget
        if budget is None or budget.time_s is None:
            return 0.0
        floor = step / budget.min_steps if budget.min_steps else 1.0
        return min(1.0, elapsed_s / budget.time_s, floor)
