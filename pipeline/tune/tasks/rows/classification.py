"""One's own rows with a label for a text or a pair of texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import orjson
from pydantic import Field

from cluster.artefacts.errors import ConfigError
from pipeline.config.loading import Config
from pipeline.tune.files.rows import Row
from pipeline.tune.forms.classification.settings import UNLABELLED, ClassificationTaskConfig, Example
from pipeline.tune.task import TaskData
from pipeline.tune.tasks.rows.base import RowsTaskConfig, label_in, name_of, rows_of, text_in, value_of

MOST_TOLD = 20
"""Labels that an error names, at most."""


class TextColumns(Config):
    """Names of the columns."""

    text: str = "text"
    """The text, or the first one of a pair."""
    text_b: str | None = None
    """The second text of a pair; null for single texts."""
    label: str = "label"
    """The label, or the number to predict."""
    id: str | None = None
    """Names of examples in the predictions; null takes file and line."""


class TextRowsConfig(RowsTaskConfig, ClassificationTaskConfig):
    """Settings that classification and regression of one's own texts share."""

    columns: TextColumns = TextColumns()
    """Names of the columns."""
    test: Path | None = None
    """Rows without labels to predict after the training, in test-predictions.jsonl."""

    def load(self) -> TaskData[Example]:
        """Read the files."""
        labels = self.label_names()
        train, evaluation = self.sides(
            lambda path: (self._example(row, self.target(row, labels)) for row in rows_of(path))
        )
        tests = [] if self.test is None else [self.test]
        test = [self._example(row, UNLABELLED) for path in tests for row in rows_of(path)]
        return TaskData.of_files(train, evaluation, [*self.files, *tests], labels, test)

    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, in the order of their numbers; empty for numbers."""
        return ()

    def target(self, row: Row, labels: tuple[str, ...]) -> float:
        """The number of the label of a row, or the number to predict.

        Raises:
            ConfigError: there is none.
        """
        raise NotImplementedError

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """JSON lines: id and prediction, and of labels the score of each."""
        lines = []
        for example, value, scores in zip(
            examples, self.predictions(outputs).tolist(), outputs.tolist(), strict=True
        ):
            shown = {"prediction": labels[value], "logits": scores} if labels else {"prediction": value}
            lines.append(orjson.dumps({"id": example.id} | shown, option=orjson.OPT_APPEND_NEWLINE))
        return {"test-predictions.jsonl": b"".join(lines)}

    def _example(self, row: Row, target: float) -> Example:
        columns = self.columns
        second = None if columns.text_b is None else text_in(row, "text_b", columns.text_b)
        return Example(name_of(row, columns.id), text_in(row, "text", columns.text), second, target)


class RowsClassificationConfig(TextRowsConfig):
    """Classification of one's own texts, or pairs of texts."""

    kind: Literal["rows_classification"] = "rows_classification"
    labels: tuple[str, ...] | None = Field(default=None, min_length=2)
    """All labels, in the order of their numbers; null takes those of the training file, sorted."""

    metrics = ("accuracy", "macro_f1", "matthews")

    def label_names(self) -> tuple[str, ...]:
        """`labels`; else those of the training file, sorted as numbers where all are whole numbers, otherwise as texts.

        Raises:
            ConfigError: the training file has no rows, or the same label in all of them.
        """
        if self.labels is not None:
            return self.labels
        column = self.columns.label
        found = {label_in(row, column) for row in rows_of(self.train)}
        if not found:
            raise ConfigError(
                f"There are no rows in {self.train}.",
                next_step="name a file of rows to learn from as `train`",
            )
        if len(found) == 1:
            raise ConfigError(
                f"All rows of {self.train} have the same label in the column `{column}`, but two are needed.",
                next_step="set columns.label to the column of labels, or name all labels in `labels`",
            )
        numeric = all(label.isdecimal() for label in found)
        return tuple(sorted(found, key=(lambda label: (int(label), label)) if numeric else str))

    def target(self, row: Row, labels: tuple[str, ...]) -> float:
        """The number of the label."""
        label = label_in(row, self.columns.label)
        if label not in labels:
            more = [f"{len(labels) - MOST_TOLD:,} more"] if len(labels) > MOST_TOLD else []
            known = ", ".join([*map(repr, labels[:MOST_TOLD]), *more])
            problem = f"the label in column `{self.columns.label}` is {label!r}, not one of {known}"
            raise row.error(problem, "correct the row, or name all labels in `labels`")
        return labels.index(label)


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
