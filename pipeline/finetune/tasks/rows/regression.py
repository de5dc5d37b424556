"""One's own rows with a number for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import orjson

from pipeline.finetune.files.rows import Row
from pipeline.finetune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.finetune.task import TaskData
from pipeline.finetune.tasks.rows.base import RowsTaskConfig, name_of, rows_of, text_in, value_of, wrong_row
from pipeline.finetune.tasks.rows.classification import TextColumns, read_unlabelled


class RowsRegressionConfig(RowsTaskConfig, ClassificationTaskConfig):
    """Prediction of a number for one's own texts, or pairs of texts."""

    kind: Literal["rows_regression"] = "rows_regression"
    columns: TextColumns = TextColumns()
    """Names of the columns."""
    test: Path | None = None
    """Rows without numbers to predict after the training, in test-predictions.jsonl."""

    regression = True
    metrics = ("pearson", "spearman")

    def load(self) -> TaskData[Example]:
        """Read the files.

        Raises:
            MissingInputError: a file is missing.
            ConfigError: a file cannot be read, a column is missing, or a value is no number.
        """
        train, evaluation = self.sides(self._numbered)
        test = [] if self.test is None else [*read_unlabelled(self.test, self.columns)]
        paths = [*self.files, *([] if self.test is None else [self.test])]
        return TaskData.of_files(train, evaluation, paths, test=test)

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """JSON lines: id and predicted number."""
        rows = zip(examples, self.predictions(outputs).tolist(), strict=True)
        lines = (orjson.dumps({"id": each.id, "prediction": number}) + b"\n" for each, number in rows)
        return {"test-predictions.jsonl": b"".join(lines)}

    def _numbered(self, path: Path) -> Iterator[Example]:
        columns = self.columns
        for row in rows_of(path):
            second = None if columns.text_b is None else text_in(row, "text_b", columns.text_b)
            text = text_in(row, "text", columns.text)
            yield Example(name_of(row, columns.id), text, second, number_in(row, columns.label))


def number_in(row: Row, column: str) -> float:
    """The number of a column.

    Raises:
        ConfigError: there is no such column, or its value is not a finite number.
    """
    value = value_of(row, "label", column)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise wrong_row(
            row, f"the column `{column}` holds {value!r}, no number", "correct the row, or leave it out"
        )
    return number
