"""The result of a ladder as tables for the terminal, as Markdown, and as one self-contained HTML page."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, get_args

from cluster.artefacts.visible import render
from pipeline.road.ladder.results import ComparisonResult, LadderResult, Spent, Verdict
from pipeline.tune.report.page import percent

Rows = list[dict[str, str]]
"""A table: the cells of each row by column."""


def signed(share: float) -> str:
    """A difference of shares in percent, with its sign; 0 has none."""
    points = f"{100 * share:+.1f}"
    return "0.0" if float(points) == 0 else points


def comparison_rows(comparison: ComparisonResult) -> Rows:
    """A row for each pair of neighbours in the paper's order, on each task."""
    return [
        {
            "task": task.task,
            "lower in the paper": f"{lower.arm} {percent(lower.mean)} ± {percent(lower.std)}",
            "higher in the paper": f"{higher.arm} {percent(higher.mean)} ± {percent(higher.std)}",
            "difference": signed(pair.difference),
            "95% interval": f"{signed(pair.low)} to {signed(pair.high)}",
            "here": pair.verdict,
        }
        for task in comparison.tasks
        for (lower, higher), pair in zip(itertools.pairwise(task.scores), task.pairs, strict=True)
    ]


def floor_rows(result: LadderResult) -> Rows:
    """A row for each task."""
    return [
        {
            "task": facts.task,
            "metric": facts.metric,
            "examples": f"{facts.num_train_examples:,} / {facts.num_evaluation_examples:,}",
            **{name: percent(score) for name, score in facts.floors.items()},
            "ceiling": f"{percent(facts.ceiling.score)} ({facts.ceiling.source})" if facts.ceiling else "",
        }
        for facts in result.tasks
    ]


def arm_rows(result: LadderResult, spent: Spent) -> Rows:
    """A row for each arm: the size of its pre-training with one seed."""
    return [
        {
            "arm": arm.arm,
            "objective": arm.objective or "none",
            "tokens": f"{arm.tokens:,}" if arm.tokens else "",
            "FLOPs": f"{arm.flops:.2e}" if arm.flops else "",
            "held out, start to end": f"{arm.held_out[0]:.3f} to {arm.held_out[1]:.3f}"
            if arm.held_out
            else "",
            "seconds": f"{spent.by_arm[arm.arm]:,.0f}" if spent.by_arm[arm.arm] else "",
        }
        for arm in result.arms
    ]


def summary_rows(result: LadderResult) -> Rows:
    """A row for each comparison: how often its pairs have the paper's order."""
    rows = []
    for comparison in result.comparisons:
        verdicts = [pair.verdict for task in comparison.tasks for pair in task.pairs]
        counts = {verdict: str(verdicts.count(verdict)) for verdict in get_args(Verdict)}
        rows.append({"comparison": comparison.title, "pairs": str(len(verdicts)), **counts})
    return rows


def time_sentence(spent: Spent) -> str:
    """A sentence about the time of the trainings."""
    return f"The trainings took {spent.total_s / 3600:.1f} hours by the clock, all added up; some ran side by side."


def method(result: LadderResult) -> str:
    """How the figures came about."""
    return (
        f"Every arm is pre-trained with the seeds {', '.join(map(str, result.seeds))}, and fine-tuned with the same"
        " seed. Scores are mean ± standard deviation over seeds, in percent, after the last epoch. The interval of a"
        " difference is a paired bootstrap over the evaluation examples, all seeds together. A difference counts where"
        " that interval leaves out 0 and it is larger than the standard deviation of a difference of two seeds;"
        " otherwise it is within the spread."
    )


def render_markdown(result: LadderResult, spent: Spent) -> str:
    """The whole document; the same result and times give the same text."""
    parts = [
        f"# Does pre-training help? The ladder `{result.name}`",
        time_sentence(spent),
        table(summary_rows(result)),
        method(result),
    ]
    for comparison in result.comparisons:
        parts += [
            f"## {comparison.title}",
            f"{comparison.source}: {comparison.finding}; so {comparison.order}.",
        ]
        parts += [comparison.note] if comparison.note else []
        parts.append(table(comparison_rows(comparison)))
    parts += ["## Tasks", table(floor_rows(result))]
    parts += ["## Arms", "Each with one seed.", table(arm_rows(result, spent))]
    parts += ["## Scores", "Each artefact holds the predictions that these figures are computed from."]
    parts.append("\n".join(f"- {name}: `{place}`" for name, place in result.scores.items()))
    return "\n\n".join(parts) + "\n"


def table(rows: Rows) -> str:
    """A table; bars in cells are escaped."""
    lines = [rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


TEMPLATE = Path(__file__).with_name("page.html.j2")
WIDTH, LEFT, RIGHT, ROW, TOP = 420, 190, 44, 26, 26
"""Sizes of a plot and its parts, in pixels; narrow, so that names stay readable where a telephone shrinks it."""
NEAR = 0.05
"""A floor or a ceiling is drawn if it lies at most so much (share of 1) outside of the arms' scores."""


def render_page(result: LadderResult, spent: Spent) -> str:
    """HTML of one page without scripts, images or links to other files. The same result and times give the same
    page."""
    return render(
        TEMPLATE.read_text(encoding="utf-8"),
        result=result,
        width=WIDTH,
        time=time_sentence(spent),
        method=method(result),
        summary=summary_rows(result),
        comparisons=[(each, comparison_rows(each), plots(result, each)) for each in result.comparisons],
        floors=floor_rows(result),
        arms=arm_rows(result, spent),
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
        # Others would press the differences between the arms together.
        shown = (min(values) - NEAR, max(values) + NEAR)
        lines = {name: value for name, value in lines.items() if shown[0] <= value <= shown[1]}
        # The nearest multiples of 5 percent around the values, two different ones.
        drawn_values = [*values, *lines.values()]
        low, high = math.floor(min(drawn_values) * 20), math.ceil(max(drawn_values) * 20)
        low, high = low / 20, max(high, low + 1) / 20

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
        ticks = [(x(low), percent(low)), (x(high), percent(high))]
        marks = [{"x": x(value), "name": name, "value": percent(value)} for name, value in lines.items()]
        named = {"task": task.task, "metric": facts[task.task].metric}
        drawn.append(named | {"rows": rows, "height": height, "ticks": ticks, "marks": marks})
    return drawn
