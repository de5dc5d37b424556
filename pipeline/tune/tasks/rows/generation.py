"""One's own rows with a text for a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.config.loading import Config
from pipeline.tune.forms.generation.settings import GenerationTaskConfig, TextPair
from pipeline.tune.tasks.rows.base import RowsTaskConfig, name_of, rows_of, text_in


class PairColumns(Config):
    """Names of the columns."""

    source: str = "source"
    """The text to read."""
    target: str = "target"
    """The text to write."""
    id: str | None = None
    """Names of pairs in the predictions; null takes file and line."""


class RowsGenerationConfig(RowsTaskConfig, GenerationTaskConfig):
    """Generation of a text for each of one's own texts."""

    kind: Literal["rows_generation"] = "rows_generation"
    columns: PairColumns = PairColumns()
    """Names of the columns."""

    metrics = ("rouge1", "rouge2", "rouge_l")

    def examples(self, path: Path) -> Iterator[TextPair]:
        """The pairs of a file."""
        columns = self.columns
        for row in rows_of(path):
            source, target = text_in(row, "source", columns.source), text_in(row, "target", columns.target)
            yield TextPair(name_of(row, columns.id), source.strip(), target.strip())
