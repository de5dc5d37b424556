"""One's own rows with a number for a text or a pair of texts."""

from __future__ import annotations

import math
from typing import Literal

from pipeline.tune.files.rows import Row
from pipeline.tune.tasks.rows.base import value_of
from pipeline.tune.tasks.rows.classification import TextRowsConfig


class RowsRegressionConfig(TextRowsConfig):
    """Prediction of a number for one's own texts, or pairs of texts."""

    kind: Literal["rows_regression"] = "rows_regression"

    regression = True
    metrics = ("pearson", "spearman")

    def target(self, row: Row, labels: tuple[str, ...]) -> float:
        """The number of the column of labels.

        Raises:
            ConfigError: there is no such column, or its value is not a finite number.
        """
        value = value_of(row, "label", self.columns.label)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            problem = f"the column `{self.columns.label}` holds {value!r}, no number"
            raise row.error(problem, "correct the row, or leave it out")
        return number
