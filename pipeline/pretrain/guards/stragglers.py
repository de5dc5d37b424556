"""Which ranks are slower than the group: a step takes as long as its slowest rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Comparison:
    """The times of all ranks."""

    p50_s: tuple[float, ...]
    """By rank, the median of its busy times."""
    p90_s: tuple[float, ...]
    """By rank, what nine of ten steps stay below."""
    group_s: float
    """The median of the ranks' medians; the lower of the two in the middle, so that the slower of two ranks is
    found."""
    stragglers: tuple[int, ...]
    """Ranks whose median is above `ratio` times the group's, slowest first."""

    @property
    def metrics(self) -> dict[str, float]:
        """For the log: the group's median, and the slowest rank's median in units of it."""
        return {
            "rank_busy_p50_s": self.group_s,
            "rank_busy_p90_s": max(self.p90_s),
            "slowest_rank_ratio": max(self.p50_s) / self.group_s if self.group_s > 0 else 1.0,
        }

    def event(self, workers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Details of the event `straggler` in the run's history.

        Args:
            workers: by rank, where it runs, as the event `started` has it.
        """
        slow = [
            {**workers[rank], "p50_s": round(self.p50_s[rank], 6), "p90_s": round(self.p90_s[rank], 6)}
            for rank in self.stragglers
        ]
        return {"group_p50_s": round(self.group_s, 6), "ranks": slow}


def compare(busy_s: Sequence[Sequence[float]], ratio: float) -> Comparison:
    """Compare the busy times of all ranks.

    Args:
        busy_s: by rank, its times; at least one each.
        ratio: times the group's median above which a rank's median makes it a straggler.
    """
    p50 = [float(np.percentile(times, 50)) for times in busy_s]
    p90 = [float(np.percentile(times, 90)) for times in busy_s]
    group = median_low(p50)
    slow = [rank for rank in np.argsort(p50)[::-1].tolist() if p50[rank] > ratio * group]
    return Comparison(tuple(p50), tuple(p90), group, tuple(slow))
