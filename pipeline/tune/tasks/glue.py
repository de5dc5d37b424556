"""Classification or regression on a task of GLUE, whose folder holds train.tsv, dev.tsv and test.tsv."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cluster.artefacts.errors import MissingInputError
from pipeline.tune.files.lines import require_file
from pipeline.tune.files.rows import Row, is_dataset, read_split
from pipeline.tune.files.tables import GlueFiles
from pipeline.tune.forms.classification.settings import UNLABELLED, ClassificationTaskConfig, Example
from pipeline.tune.task import TaskData

Split = tuple[list[Path], list[Example]]
"""The files of a split, and its examples."""


class GlueTaskConfig(ClassificationTaskConfig):
    """Settings that the tasks of GLUE share."""

    path: Path
    """The unpacked folder, with train.tsv and dev.tsv; or a data set with the splits train and validation, as
    `datasets` saves it or the Hugging Face Hub keeps it."""
    submit: bool = False
    """Whether test.tsv is predicted, too, in the file that the leaderboard takes."""

    files: ClassVar[GlueFiles]
    label_names: ClassVar[tuple[str, ...]] = ()
    """Names of the labels for people, where the files hold numbers only."""
    hub_texts: ClassVar[tuple[str, ...]] = ()
    """Columns of the texts in data sets of the Hub, where the official files have others."""
    evaluations: ClassVar[tuple[tuple[str, str], ...]] = (("", "dev"),)
    """The files to score on: a group of examples and the beginning of a file's name each."""
    leaderboard: ClassVar[tuple[tuple[str, str, str], ...]]
    """The test sets: a group of examples, the beginning of a file's name, and the file to submit each."""

    def load(self) -> TaskData[Example]:
        """Read `train.tsv` and `dev.tsv`, and `test.tsv` where it is to be predicted."""
        train = self.split("train")
        evaluation = [self.split(stem, group) for group, stem in self.evaluations]
        test = [self.test_split(stem, group) for group, stem, _ in self.leaderboard] if self.submit else []
        return TaskData.of_files(
            train[1],
            [example for _, examples in evaluation for example in examples],
            [path for paths, _ in (train, *evaluation, *test) for path in paths],
            () if self.regression else self.label_names or self.files.labels,
            [example for _, examples in test for example in examples],
        )

    def split(self, stem: str, group: str = "") -> Split:
        """The labelled examples of the file `STEM.tsv`, or of the split of a data set."""
        if is_dataset(self.path):
            paths, rows = self._hub_split(stem)
            return paths, [
                _example(row.name, self._hub_texts(row), self._hub_label(row), group) for row in rows
            ]
        path = require_file(self.path / f"{stem}.tsv", self.files.origin, "`path`")
        return [path], [
            _example(name, texts, label, group) for name, texts, label in self.files.read_labelled(path)
        ]

    def test_split(self, stem: str, group: str = "") -> Split:
        """The examples of a test set, named by the numbers that their predictions are submitted under."""
        if is_dataset(self.path):
            paths, rows = self._hub_split(stem)
            return paths, [
                _example(str(row.values.get("idx", number)), self._hub_texts(row), UNLABELLED, group)
                for number, row in enumerate(rows)
            ]
        path = require_file(self.path / f"{stem}.tsv", self.files.origin, "`path`, or leave `submit` out")
        return [path], [
            _example(index, texts, UNLABELLED, group) for index, texts in self.files.read_unlabelled(path)
        ]

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """`index` and `prediction` of every test example, in a tab-separated file for each test set."""
        predicted = [self.submitted(value) for value in self.predictions(outputs)]
        return {
            file: submission_file(
                (example.id, value)
                for example, value in zip(examples, predicted, strict=True)
                if example.group == group
            )
            for group, _, file in self.leaderboard
        }

    def submitted(self, prediction: Any) -> str:
        """A prediction as the leaderboard takes it: the label as in the official files."""
        return self.files.labels[int(prediction)]

    def _hub_split(self, stem: str) -> tuple[list[Path], Iterator[Row]]:
        split = stem.replace("dev", "validation")
        paths, rows = read_split(self.path, split)
        if not paths:
            raise MissingInputError(
                f"The data set {self.path} has no split `{split}`.",
                next_step="save it with all its splits, or name the folder of the official files",
            )
        return paths, rows

    def _hub_texts(self, row: Row) -> list[str]:
        columns = self.hub_texts or self.files.texts
        for column in columns:
            if not isinstance(row.values.get(column), str):
                raise row.error(f"there is no text `{column}` among {list(row.values)}")
        return [row.values[column] for column in columns]

    def _hub_label(self, row: Row) -> float:
        """The label of a row: a number of `datasets.ClassLabel`, which has the order of our labels, or a text."""
        label = row.values.get("label")
        if isinstance(label, int) and self.files.bounds is None:
            if not 0 <= label < len(self.files.labels):
                known = f"from 0 to {len(self.files.labels) - 1}"
                raise row.error(f"the label is {label}, not {known}; test sets have no labels")
            return label
        return self.files.label_number(row.path, row.name, str(label))


def submission_file(rows: Iterable[tuple[str, str]]) -> bytes:
    """Tab-separated `index` and `prediction`, as gluebenchmark.com takes them."""
    return "".join(f"{index}\t{value}\n" for index, value in (("index", "prediction"), *rows)).encode()


def _example(name: str, texts: Sequence[str], label: float, group: str) -> Example:
    return Example(name, texts[0], texts[1] if len(texts) > 1 else None, label, group)
