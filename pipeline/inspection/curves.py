"""Curves of a run's log: one value per step, along steps or along tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.objectives.terms import TOTAL, logged
from pipeline.runs.directory import RunDirectory
from pipeline.runs.history import Attempt, list_attempts
from pipeline.runs.log.kinds import LogKind
from pipeline.runs.log.lines import entries_from
from pipeline.runs.stored_settings import StoredSettings
from pipeline.runs.token_plan import TokenPlan


@dataclass(frozen=True, slots=True)
class Curve:
    """Numbers over a run, ascending in `steps` and in `tokens`."""

    steps: np.ndarray
    """[points] int64 updates made."""
    tokens: np.ndarray
    """[points] float64 tokens of text read until then."""
    values: np.ndarray
    """[points] float64; NaN where nothing was logged."""

    def along(self, axis: str) -> np.ndarray:
        """[points] float64 places on the axis `step` or `tokens`."""
        return self.tokens if axis == "tokens" else self.steps.astype(np.float64)

    def until(self, axis: str, place: float) -> Curve:
        """The part of the curve at or before a place of an axis."""
        count = int(np.searchsorted(self.along(axis), place, side="right"))
        return Curve(self.steps[:count], self.tokens[:count], self.values[:count])

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
    wanted = {LogKind.STEP: tuple(names), LogKind.HELD_OUT: (metric,)}
    steps = {kind: array("q") for kind in wanted}
    values = {kind: [array("d") for _ in own] for kind, own in wanted.items()}
    for entry, _ in entries_from(run):
        kind = entry["kind"]
        if kind in wanted:
            steps[kind].append(entry["step"])
            data = entry["data"]
            for name, column in zip(wanted[kind], values[kind], strict=True):
                column.append(_number(logged(data, name)))
    found: dict[str, Curve] = {}
    segments = _segments(run, list_attempts(run.events()))
    for kind, keys in ((LogKind.STEP, names), (LogKind.HELD_OUT, (LogKind.HELD_OUT,))):
        own = np.frombuffer(steps[kind], dtype=np.int64) if steps[kind] else np.empty(0, np.int64)
        tokens = _tokens(segments, own)
        for key, column in zip(keys, values[kind], strict=True):
            numbers = np.frombuffer(column, dtype=np.float64) if column else np.empty(0)
            found[key] = Curve(own, tokens, numbers)
    return found


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan


def _segments(run: RunDirectory, attempts: Sequence[Attempt]) -> list[tuple[int, TokenPlan]]:
    """(first step, tokens by step) of the stretches of the run; a later attempt replaces the stretches behind its
    start."""
    plans: dict[str, TokenPlan] = {}
    found: list[tuple[int, TokenPlan]] = []
    for number, attempt in enumerate(attempts):
        if attempt.config_file not in plans:
            plans[attempt.config_file] = StoredSettings.of(run, attempt.config_file).token_plan
        # A run begins at 0, although the line of its history that says so may have been torn.
        first_step = attempt.first_step if number else 0
        found = [one for one in found if one[0] < first_step]
        found.append((first_step, plans[attempt.config_file]))
    return found or [(0, StoredSettings.of(run).token_plan)]


def _tokens(segments: Sequence[tuple[int, TokenPlan]], steps: np.ndarray) -> np.ndarray:
    """[points] float64 tokens read until each of the ascending steps; straight lines between a few knots."""
    last = int(steps[-1]) if len(steps) else 0
    places, totals = [0], [0]
    ends = [*(first for first, _ in segments[1:]), max(last, segments[-1][0])]
    for (first, plan), end in zip(segments, ends, strict=True):
        knots = sorted({*(knot for knot in plan.knots if first < knot < end), end})
        base, before = totals[-1], plan.tokens_before(first)
        for knot in knots:
            places.append(knot)
            totals.append(base + plan.tokens_before(knot) - before)
    return np.interp(steps.astype(np.float64), places, totals)
