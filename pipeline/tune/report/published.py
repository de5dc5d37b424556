"""The scores that papers report on tasks that are fine-tuned here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True, slots=True)
class Published:
    """The scores of one system on one task."""

    system: str
    task: str
    """The kind of the task."""
    metrics: dict[str, float]
    """In percent, as printed, under our names."""
    split: str
    """`dev` or `test`: the examples that were scored."""
    source: str
    """Paper and table."""
    note: str = ""


def published_scores(kind: str) -> list[Published]:
    """The published scores on a kind of task, in order of publication; none where we know of none."""
    return [found for found in _all() if found.task == kind]


@cache
def _all() -> tuple[Published, ...]:
    import yaml

    return tuple(
        Published(system, task, metrics, table["split"], table["source"], table.get("note", ""))
        for table in yaml.safe_load(_FILE.read_text(encoding="utf-8"))
        for system, tasks in table["scores"].items()
        for task, metrics in tasks.items()
    )
