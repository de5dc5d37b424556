"""Losses and metrics of trainings as SVG text that a page can hold; colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

MOST_POINTS = 200
"""A longer curve is drawn as means of neighbouring points."""
_WIDTH, _HEIGHT = 360, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 12, 34
_NUM_TICKS = 4
_LIKELY_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a drawing, such as a training."""

    name: str
    colour: int
    """Index of a colour of the page."""
    x: Sequence[float]
    """Ascending: updates."""
    y: Sequence[float]
    marked: bool = False
    """Whether each point has a dot."""


def plot(
    curves: Sequence[Curve], *, title: str, y_format: Callable[[float], str], x_name: str = "update"
) -> str:
    """An SVG element with updates, or other whole numbers, from left to right; empty where no curve has a point.

    The same curves give the same text. NaN and infinite points are left out.
    """
    drawn: list[tuple[Curve, list[tuple[float, float]]]] = []
    for curve in curves:
        if points := [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]:
            drawn.append((curve, points))
    if not drawn:
        return ""
    values = [y for _, points in drawn for _, y in points]
    x_ticks = ticks(0, max(points[-1][0] for _, points in drawn), whole=True)
    y_ticks = ticks(min(values), max(values))

    def x_place(value: float) -> float:
        share = (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y_place(value: float) -> float:
        share = (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for tick in y_ticks:
        y = y_place(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{y}" dy=".35em" text-anchor="end">{y_format(tick)}</text>')
    for tick in x_ticks:
        parts.append(f'<text x="{x_place(tick)}" y="{_HEIGHT - 18}" text-anchor="middle">{tick:,.0f}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 3}" text-anchor="middle">{x_name}</text>'
    )
    for curve, points in drawn:
        places = [(x_place(x), y_place(y)) for x, y in points]
        line = " ".join(f"{x},{y}" for x, y in places)
        dots = "".join(f'<circle cx="{x}" cy="{y}" r="2.5"/>' for x, y in places) if curve.marked else ""
        parts.append(f'<g class="c{curve.colour}"><title>{escape(curve.name)}</title>')
        parts.append(f'<polyline points="{line}"/>{dots}</g>')
    return "".join([*parts, "</svg>"])


def thinned(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Numbers of updates, from 1, and values; of more than MOST_POINTS values, means of equally many neighbours."""
    width = math.ceil(len(values) / MOST_POINTS) or 1
    starts = range(0, len(values), width)
    means = [float(np.mean(values[first : first + width])) for first in starts]
    return [first + (min(width, len(values) - first) + 1) / 2 for first in starts], means


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Some round numbers, or whole ones, in equal steps, the first at most `low` and the last at least `high`."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / _NUM_TICKS))
    steps = (power * each for each in _LIKELY_STEPS)
    step = next(
        step for step in steps if step * _NUM_TICKS >= span * 0.999 and (not whole or step.is_integer())
    )
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]
