"""Curves of a run's log, one value per step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.objectives.terms import TOTAL
from pipeline.run.directory import RunDirectory
from pipeline.run.log.kinds import LogKind
from pipeline.run.log.lines import entries_that_count


@dataclass(frozen=True, slots=True)
class Curve:
    """Numbers over a run, ascending in `steps`."""

    steps: np.ndarray
    """[points] int64 updates made."""
    values: np.ndarray
    """[points] float64; NaN where nothing was logged."""

    @property
    def last_step(self) -> int:
        """0 for a curve without points."""
        return int(self.steps[-1]) if len(self.steps) else 0

    @property
    def finite(self) -> np.ndarray:
        """The values that are numbers."""
        return self.values[np.isfinite(self.values)]

    def until(self, step: int) -> Curve:
        """The part of the curve at or before a step."""
        count = int(np.searchsorted(self.steps, step, side="right"))
        return Curve(self.steps[:count], self.values[:count])

    def mean_of_last(self, count: int) -> float | None:
        """Mean of the last values that are finite; None when there are none."""
        last = self.values[-count:]
        finite = last[np.isfinite(last)]
        return float(finite.mean()) if len(finite) else None


def read_curves(run: RunDirectory, names: Sequence[str], metric: str = TOTAL) -> dict[str, Curve]:
    """Curves of a run's log in one pass over it: `names` of every step, and `metric` of evaluations.

    Returns:
        By name; the metric of evaluations as `held_out`. Steps are those that the run stands on: an update that was
        taken back is not in the log.
    """
    wanted = [(LogKind.STEP, name, name) for name in names] + [(LogKind.HELD_OUT, metric, LogKind.HELD_OUT)]
    points = {label: (array("q"), array("d")) for *_, label in wanted}
    for entry in entries_that_count(run):
        for kind, name, label in wanted:
            if entry["kind"] == kind:
                steps, values = points[label]
                steps.append(entry["step"])
                value = entry["data"].get(name)
                values.append(float(value) if isinstance(value, int | float) else np.nan)
    return {
        label: Curve(np.asarray(steps, dtype=np.int64), np.asarray(values, dtype=np.float64))
        for label, (steps, values) in points.items()
    }
