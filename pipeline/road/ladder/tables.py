"""The cells of a ladder's tables, for the terminal, Markdown and HTML alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import get_args

from pipeline.road.ladder.comparing import ArmScore, Pair, Verdict
from pipeline.road.ladder.results import ComparisonResult, LadderResult, Spent, TaskFacts
from pipeline.tune.report.page import percent

COMPARISON_COLUMNS = (
    "task",
    "lower in the paper",
    "higher in the paper",
    "difference",
    "95% interval",
    "here",
)
FLOOR_COLUMNS = ("task", "metric", "examples", "most frequent label", "words alone", "ceiling")
SUMMARY_COLUMNS = ("comparison", "pairs", "same order", "opposite", "within the spread")
ARM_COLUMNS = ("arm", "objective", "tokens", "FLOPs", "held out, start to end", "processor s")


def signed(share: float) -> str:
    """A difference of shares in percent, with its sign; 0 has none."""
    points = f"{100 * share:+.1f}"
    return "0.0" if float(points) == 0 else points


def shown_score(score: ArmScore) -> str:
    """Mean and standard deviation, such as `masked 71.3 ± 0.4`."""
    return f"{score.arm} {percent(score.mean)} ± {percent(score.std)}"


def comparison_rows(comparison: ComparisonResult) -> list[list[str]]:
    """A row for each pair of neighbours in the paper's order, on each task."""
    return [
        [
            task.task,
            shown_score(lower),
            shown_score(higher),
            signed(pair.difference),
            shown_interval(pair),
            pair.verdict,
        ]
        for task in comparison.tasks
        for (lower, higher), pair in zip(itertools.pairwise(task.scores), task.pairs, strict=True)
    ]


def shown_interval(pair: Pair) -> str:
    """The bounds of the difference."""
    return f"{signed(pair.low)} to {signed(pair.high)}"


def floor_rows(result: LadderResult) -> list[list[str]]:
    """A row for each task."""
    return [
        [
            facts.task,
            facts.metric,
            f"{facts.num_train_examples:,} / {facts.num_evaluation_examples:,}",
            *(percent(score) for score in facts.floors.values()),
            shown_ceiling(facts),
        ]
        for facts in result.tasks
    ]


def shown_ceiling(facts: TaskFacts) -> str:
    """The published score with its source; empty where none is configured."""
    return "" if facts.ceiling is None else f"{percent(facts.ceiling.score)} ({facts.ceiling.source})"


def arm_rows(result: LadderResult, spent: Spent) -> list[list[str]]:
    """A row for each arm: the size of its pre-training with one seed."""
    return [
        [
            arm.arm,
            arm.objective or "none",
            f"{arm.tokens:,}" if arm.tokens else "",
            f"{arm.flops:.2e}" if arm.flops else "",
            f"{arm.held_out[0]:.3f} to {arm.held_out[1]:.3f}" if arm.held_out else "",
            f"{spent.by_arm[arm.arm]:,.0f}" if spent.by_arm[arm.arm] else "",
        ]
        for arm in result.arms
    ]


def summary_rows(result: LadderResult) -> list[list[str]]:
    """A row for each comparison: how often its pairs stand as in the paper."""
    rows = []
    for comparison in result.comparisons:
        verdicts = [pair.verdict for task in comparison.tasks for pair in task.pairs]
        counts = [str(verdicts.count(verdict)) for verdict in get_args(Verdict)]
        rows.append([comparison.title, str(len(verdicts)) if verdicts else "not finished", *counts])
    return rows


def progress_sentence(result: LadderResult, spent: Spent) -> str:
    """A sentence about an unfinished ladder; empty for a finished one."""
    if spent.finished == spent.stages:
        return ""
    return (
        f"This ladder is not finished: {spent.finished} of {spent.stages} stages are. Comparisons are made on the seeds"
        " that all of their arms have, at least two."
    )


def time_sentence(spent: Spent) -> str:
    """A sentence about the time of the finished stages."""
    return (
        f"The finished stages took {spent.cpu_s / 3600:.1f} hours of processor cores; their times by the clock add up"
        f" to {spent.wall_s / 3600:.1f} hours, of which some ran side by side."
    )


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
    """The whole document; the same result and costs give the same text."""
    parts = [
        f"# Does pre-training help? The ladder `{result.name}`",
        " ".join(filter(None, [progress_sentence(result, spent), time_sentence(spent)])),
        table(SUMMARY_COLUMNS, summary_rows(result)),
        method(result),
    ]
    for comparison in result.comparisons:
        rows = comparison_rows(comparison)
        parts += [
            f"## {comparison.title}",
            f"{comparison.source}: {comparison.finding}; so {comparison.order}.",
        ]
        parts += [comparison.note] if comparison.note else []
        parts.append(table(COMPARISON_COLUMNS, rows) if rows else "Not finished.")
    parts += ["## Tasks", table(FLOOR_COLUMNS, floor_rows(result))]
    parts += ["## Arms", "Each with one seed.", table(ARM_COLUMNS, arm_rows(result, spent))]
    parts += ["## Scores", "Each artefact holds the predictions that these figures are computed from."]
    parts.append("\n".join(f"- {name}: `{place}`" for name, place in result.scores.items()) or "None yet.")
    return "\n\n".join(parts) + "\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; bars in cells are escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
