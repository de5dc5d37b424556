"""The result of a ladder as tables for the terminal, as Markdown, and as one self-contained HTML page."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from cluster.artefacts.visible import render, svg
from pipeline.road.ladder.results import ArmScore, Verdict
from pipeline.tune.report.page import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[dict[str, str]]
"""A table: the cells of each row by column."""


def signed(share: float) -> str:
    """A difference of shares in percent, with its sign; 0 has none."""
    points = f"{100 * share:+.1f}"
    return "0.0" if float(points) == 0 else points


def comparison_rows(comparison: Mapping[str, Any]) -> Rows:
    """A row for each pair of neighbours in the paper's order, on each task."""
    return [
        {
            "task": task["task"],
            "lower in the paper": f"{lower.arm} {percent(lower.mean)} ± {percent(lower.std)}",
            "higher in the paper": f"{higher.arm} {percent(higher.mean)} ± {percent(higher.std)}",
            "difference": signed(pair.difference),
            "95% interval": f"{signed(pair.low)} to {signed(pair.high)}",
            "here": pair.verdict,
        }
        for task in comparison["tasks"]
        for (lower, higher), pair in zip(itertools.pairwise(task["scores"]), task["pairs"], strict=True)
    ]


def floor_rows(result: Mapping[str, Any]) -> Rows:
    """A row for each task."""
    return [
        {
            "task": facts["task"],
            "metric": facts["metric"],
            "examples": f"{facts['num_train_examples']:,} / {facts['num_evaluation_examples']:,}",
            **{name: percent(score) for name, score in facts["floors"].items()},
            "ceiling": f"{percent(ceiling['score'])} ({ceiling['source']})"
            if (ceiling := facts["ceiling"])
            else "",
        }
        for facts in result["tasks"]
    ]


def arm_rows(result: Mapping[str, Any], spent: Mapping[str, Any]) -> Rows:
    """A row for each arm: the size of its pre-training with one seed."""
    return [
        {
            "arm": arm["arm"],
            "objective": arm["objective"] or "none",
            "tokens": f"{arm['tokens']:,}" if arm["tokens"] else "",
            "FLOPs": f"{arm['flops']:.2e}" if arm["flops"] else "",
            "held out, start to end": " to ".join(f"{value:.3f}" for value in arm["held_out"] or ()),
            "seconds": f"{seconds:,.0f}" if (seconds := spent["by_arm"][arm["arm"]]) else "",
        }
        for arm in result["arms"]
    ]


def summary_rows(result: Mapping[str, Any]) -> Rows:
    """A row for each comparison: how often its pairs have the paper's order."""
    rows = []
    for comparison in result["comparisons"]:
        verdicts = [pair.verdict for task in comparison["tasks"] for pair in task["pairs"]]
        counts = {verdict: str(verdicts.count(verdict)) for verdict in get_args(Verdict)}
        rows.append({"comparison": comparison["title"], "pairs": str(len(verdicts)), **counts})
    return rows


def time_sentence(spent: Mapping[str, Any]) -> str:
    """A sentence about the time of the trainings."""
    return f"The trainings took {spent['total_s'] / 3600:.1f} hours by the clock, all added up; some ran side by side."


def method(result: Mapping[str, Any]) -> str:
    """How the figures came about."""
    return (
        f"Every arm is pre-trained with the seeds {', '.join(map(str, result['seeds']))}, and fine-tuned with the same"
        " seed. Scores are mean ± standard deviation over seeds, in percent, after the last epoch. The interval of a"
        " difference is a paired bootstrap over the evaluation examples, all seeds together. A difference counts where"
        " that interval leaves out 0 and it is larger than the standard deviation of a difference of two seeds;"
        " otherwise it is within the spread."
    )


def render_markdown(result: Mapping[str, Any], spent: Mapping[str, Any]) -> str:
    """The whole document; the same result and times give the same text."""
    parts = [
        f"# Does pre-training help? The ladder `{result['name']}`",
        time_sentence(spent),
        table(summary_rows(result)),
        method(result),
    ]
    for comparison in result["comparisons"]:
        parts += [
            f"## {comparison['title']}",
            f"{comparison['source']}: {comparison['finding']}; so {comparison['order']}.",
        ]
        parts += [comparison["note"]] if comparison["note"] else []
        parts.append(table(comparison_rows(comparison)))
    parts += ["## Tasks", table(floor_rows(result))]
    parts += ["## Arms", "Each with one seed.", table(arm_rows(result, spent))]
    parts += ["## Scores", "Each artefact holds the predictions that these figures are computed from."]
    parts.append("\n".join(f"- {name}: `{place}`" for name, place in result["scores"].items()))
    return "\n\n".join(parts) + "\n"


def table(rows: Rows) -> str:
    """A table; bars in cells are escaped."""
    lines = [rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


TEMPLATE = Path(__file__).with_name("page.html.j2")
NEAR = 0.05
"""A floor or a ceiling is drawn if it lies at most so much (share of 1) outside of the arms' scores."""


def render_page(result: Mapping[str, Any], spent: Mapping[str, Any]) -> str:
    """HTML of one page without scripts, images or links to other files. The same result and times give the same
    page."""
    facts = {each["task"]: each for each in result["tasks"]}
    return render(
        TEMPLATE.read_text(encoding="utf-8"),
        result=result,
        time=time_sentence(spent),
        method=method(result),
        summary=summary_rows(result),
        comparisons=[
            (
                each,
                comparison_rows(each),
                [(task["task"], *plot(task, facts[task["task"]])) for task in each["tasks"]],
            )
            for each in result["comparisons"]
        ],
        floors=floor_rows(result),
        arms=arm_rows(result, spent),
    )


def plot(task: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[str, str]:
    """A legend, and a drawing of every seed's score by arm, with near floors and ceilings as lines."""
    scores: Sequence[ArmScore] = task["scores"]
    values = [value for score in scores for value in score.values.values()]
    # Others would press the differences between the arms together.
    low, high = min(values) - NEAR, max(values) + NEAR
    marks = facts["floors"] | ({"ceiling": facts["ceiling"]["score"]} if facts["ceiling"] else {})
    marks = {name: value for name, value in marks.items() if low <= value <= high}

    def draw(axes: Axes) -> None:
        for number, score in enumerate(scores):
            own = [100 * value for value in score.values.values()]
            spread = {"xerr": 100 * score.std, "elinewidth": 6, "ecolor": "#b5d0e6"}
            axes.errorbar(100 * score.mean, number, fmt="|", markersize=14, color="C0", **spread)
            axes.plot(own, [number] * len(own), "o", color="C0", markersize=4)
        for value in marks.values():
            axes.axvline(100 * value, linestyle="--", color="C1")
        axes.set_yticks(range(len(scores)), [f"{score.arm}  {percent(score.mean)}" for score in scores])
        axes.set_ylim(len(scores) - 0.5, -0.5)

    legend = f"{facts['metric']}, percent; a dot for each seed, the bar is ± one standard deviation"
    if marks:
        legend += "; dashed: " + ", ".join(f"{name} {percent(value)}" for name, value in marks.items())
    return legend, svg(draw, width=6, height=0.9 + 0.35 * len(scores))
