"""One's own rows with a label for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import orjson
from pydantic import Field

from cluster.artefacts.errors import ConfigError
from pipeline.config.loading import Config
from pipeline.finetune.forms.classification.settings import UNLABELLED, ClassificationTaskConfig, Example
from pipeline.finetune.task import TaskData
from pipeline.finetune.tasks.rows.base import RowsTaskConfig, name_of, rows_of, text_in, wrong_row


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


class RowsClassificationConfig(RowsTaskConfig, ClassificationTaskConfig):
    """Classification of one's own texts, or pairs of texts."""

    kind: Literal["rows_classification"] = "rows_classification"
    columns: TextColumns = TextColumns()
    """Names of the columns."""
    labels: tuple[str, ...] | None = Field(default=None, min_length=2)
    """All labels, in the order of their numbers; null takes those of the training file, sorted."""
    test: Path | None = None
    """Rows without labels to predict after the training, in test-predictions.jsonl."""

    metrics = ("accuracy", "macro_f1", "matthews")

    def load(self) -> TaskData[Example]:
        """Read the files.

        Raises:
            MissingInputError: a file is missing.
            ConfigError: a file cannot be read, a column is missing, a label is unknown, or there are fewer than two.
        """
        labels = self.labels or _labels_in(self.train, self.columns.label)
        train, evaluation = self.sides(lambda path: self._labelled(path, labels))
        test = [] if self.test is None else [*read_unlabelled(self.test, self.columns)]
        paths = [*self.files, *([] if self.test is None else [self.test])]
        return TaskData.of_files(train, evaluation, paths, labels, test)

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str]
    ) -> dict[str, bytes]:
        """JSON lines: id, the predicted label, and the score of every label."""
        rows = zip(examples, self.predictions(outputs).tolist(), outputs.tolist(), strict=True)
        return {
            "test-predictions.jsonl": b"".join(
                orjson.dumps({"id": example.id, "prediction": labels[label], "logits": scores}) + b"\n"
                for example, label, scores in rows
            )
        }

    def _labelled(self, path: Path, labels: tuple[str, ...]) -> Iterator[Example]:
        columns = self.columns
        for row in rows_of(path):
            label = text_in(row, "label", columns.label).strip()
            if label not in labels:
                known = ", ".join(map(repr, labels))
                problem = f"the label in column `{columns.label}` is {label!r}, not one of {known}"
                hint = "; rows without labels can be predicted as `test`" if not label else ""
                raise wrong_row(row, problem + hint, "correct the row, or name all labels in `labels`")
            second = None if columns.text_b is None else text_in(row, "text_b", columns.text_b)
            text = text_in(row, "text", columns.text)
            yield Example(name_of(row, columns.id), text, second, labels.index(label))


def read_unlabelled(path: Path, columns: TextColumns) -> Iterator[Example]:
    """The texts of rows without labels.

    Raises:
        MissingInputError, ConfigError: as for labelled rows.
    """
    for row in rows_of(path):
        second = None if columns.text_b is None else text_in(row, "text_b", columns.text_b)
        yield Example(name_of(row, columns.id), text_in(row, "text", columns.text), second, UNLABELLED)


def _labels_in(path: Path, column: str) -> tuple[str, ...]:
    """The labels of a file: sorted as numbers where all are whole numbers, otherwise as texts."""
    found = {text_in(row, "label", column).strip() for row in rows_of(path)}
    if len(found) < 2:
        raise ConfigError(
            f"The column `{column}` of {path} has {len(found)} different labels, but at least 2 are needed.",
            next_step="set columns.label to the column of labels, or name all labels in `labels`",
        )
    numeric = all(label.isdecimal() for label in found)
    return tuple(sorted(found, key=(lambda label: (int(label), label)) if numeric else str))
