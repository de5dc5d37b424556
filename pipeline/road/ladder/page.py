"""The result of a ladder as one self-contained HTML page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from cluster.artefacts.visible import finalize
from pipeline.road.ladder.results import ComparisonResult, LadderResult, Spent
from pipeline.road.ladder.tables import (
    ARM_COLUMNS,
    COMPARISON_COLUMNS,
    FLOOR_COLUMNS,
    SUMMARY_COLUMNS,
    arm_rows,
    comparison_rows,
    floor_rows,
    method,
    progress_sentence,
    summary_rows,
    time_sentence,
)
from pipeline.tune.report.page import percent

TEMPLATE = Path(__file__).with_name("page.html.j2")
WIDTH, LEFT, RIGHT, ROW, TOP = 420, 190, 44, 26, 26
"""Of a plot and its parts, in pixels; narrow, so that names stay readable where a telephone shrinks it."""
NEAR = 0.05
"""Share of 1 by which a floor or a ceiling may lie outside of the arms' scores and still be drawn."""


def render_page(result: LadderResult, spent: Spent) -> str:
    """HTML of one page without scripts, images or links to other files. The same result and costs give the same
    page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, finalize=finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        result=result,
        width=WIDTH,
        facts=[text for text in (progress_sentence(result, spent), time_sentence(spent)) if text],
        method=method(result),
        summary=(SUMMARY_COLUMNS, summary_rows(result)),
        comparisons=[
            (each, (COMPARISON_COLUMNS, comparison_rows(each)), plots(result, each))
            for each in result.comparisons
        ],
        floors=(FLOOR_COLUMNS, floor_rows(result)),
        arms=(ARM_COLUMNS, arm_rows(result, spent)),
    )


def plots(result: LadderResult, comparison: ComparisonResult) -> list[dict[str, Any]]:
    """For each task a plot of every seed's score, with near floors and ceilings as lines; positions in pixels."""
    facts = {each.task: each for each in result.tasks}
    drawn = []
    for task in comparison.tasks:
        lines = dict(facts[task.task].floors)
        ceiling = facts[task.task].ceiling
        lines |= {"ceiling": ceiling.score} if ceiling else {}
        values = [value for score in task.scores for value in score.values.values()]
        lines = {name: value for name, value in lines.items() if _is_near(value, values)}
        low, high = _bounds([*values, *lines.values()])

        def x(value: float, low: float = low, high: float = high) -> float:
            return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

        rows = [
            {
                "y": TOP + ROW * (number + 0.5),
                "arm": score.arm,
                "shown": percent(score.mean),
                "mean": x(score.mean),
                "ends": (x(max(score.mean - score.std, low)), x(min(score.mean + score.std, high))),
                "points": [x(value) for value in score.values.values()],
            }
            for number, score in enumerate(task.scores)
        ]
        height = TOP + ROW * len(rows) + 22
        metric = facts[task.task].metric
        ticks = [(x(low), percent(low)), (x(high), percent(high))]
        marks = [{"x": x(value), "name": name, "value": percent(value)} for name, value in lines.items()]
        drawn.append(
            {
                "task": task.task,
                "metric": metric,
                "rows": rows,
                "height": height,
                "ticks": ticks,
                "marks": marks,
            }
        )
    return drawn


def _is_near(line: float, values: list[float]) -> bool:
    """Whether a line can be drawn without pressing the differences between the arms together."""
    return min(values) - NEAR <= line <= max(values) + NEAR


def _bounds(values: list[float]) -> tuple[float, float]:
    """The ends of an axis: the nearest multiples of 5 percent around the values, two different ones."""
    low, high = math.floor(min(values) * 20), math.ceil(max(values) * 20)
    return low / 20, max(high, low + 1) / 20
