"""The result of a ladder as a Markdown document."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.road.ladder.results import LadderResult, Spent
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
