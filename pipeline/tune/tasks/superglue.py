"""Tasks of SuperGLUE (Wang et al. 2019b), whose folder holds train.jsonl, val.jsonl and, without labels, test.jsonl."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.tune.files.evaluation_set import EvaluationSet, Files, texts_of
from pipeline.tune.files.lines import json_lines, read_objects, require_file, text_of, wrong_line
from pipeline.tune.forms.classification.settings import (
    UNLABELLED,
    ClassificationTaskConfig,
    Example,
)
from pipeline.tune.task import TaskConfig, TaskData

TEST_FILE = "test.jsonl"
"""Has no labels, but the numbers of its lines."""


class SuperGlueFiles:
    """The files of one task."""

    def __init__(self, folder: str, read: Callable[[Path], Iterable[Any]]) -> None:
        """`read` streams the examples of a file; they have an `id` and `texts`."""
        self.folder = folder
        self.read = read
        self.origin = (
            f"the contents of {folder}.zip of the SuperGLUE benchmark (super.gluebenchmark.com/tasks)"
        )

    def examples(self, path: Path) -> list[Any]:
        """The examples of a file.

        Raises:
            MissingInputError: it is missing.
            ConfigError: a line is not as the release has it.
        """
        return list(self.read(require_file(path, self.origin, "`path`")))

    def evaluation_set(self, name: str) -> EvaluationSet:
        """The texts of val.jsonl and, where it is there, of test.jsonl."""
        read = texts_of(lambda path: ((each.id, each.texts) for each in self.read(path)))
        folder = f"superglue/{self.folder}"
        files = Files((f"{folder}/val.jsonl",), read), Files((f"{folder}/{TEST_FILE}",), read, optional=True)
        return EvaluationSet(name, files, self.origin)


class SuperGlueTaskConfig(TaskConfig):
    """Settings that the tasks of SuperGLUE share."""

    path: Path
    """The unpacked folder, with train.jsonl and val.jsonl."""
    submit: bool = False
    """Whether test.jsonl is predicted, too, in the file that the leaderboard takes."""

    files: ClassVar[SuperGlueFiles]
    labels: ClassVar[tuple[str, ...]] = ()

    def load(self) -> TaskData[Any]:
        """Read `train.jsonl` and `val.jsonl`, and `test.jsonl` where it is to be predicted."""
        names = ("train.jsonl", "val.jsonl", *((TEST_FILE,) if self.submit else ()))
        paths = [self.path / name for name in names]
        train, evaluation, *test = map(self.files.examples, paths)
        return TaskData.of_files(train, evaluation, paths, self.labels, *test)


class SuperGlueLabelsConfig(SuperGlueTaskConfig, ClassificationTaskConfig):
    """Settings of the tasks whose leaderboard takes one label for each line of the test set."""

    submitted: ClassVar[tuple[str, ...]]
    """Labels as the leaderboard takes them, in the order of their numbers."""

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """`idx` and `label` of every test example, as super.gluebenchmark.com takes them (its FAQ)."""
        predicted = self.predictions(outputs).tolist()
        return {
            f"{self.files.folder}.jsonl": submission_file(
                (example.id, self.submitted[number])
                for example, number in zip(examples, predicted, strict=True)
            )
        }


def submission_file(rows: Iterable[tuple[str, Any]]) -> bytes:
    """JSON lines with `idx`, a number, and `label`."""
    return json_lines({"idx": int(number), "label": label} for number, label in rows)


def id_in(path: Path, name: str, found: dict[str, Any]) -> str:
    """The id of a line: of a test file, its number, under which its prediction is submitted.

    Raises:
        ConfigError: a line of a test file has no number.
    """
    if path.name != TEST_FILE:
        return name
    if not isinstance(found.get("idx"), int):
        raise wrong_line(path, name, f"`idx` is {found.get('idx')!r}, not a number")
    return str(found["idx"])


def entailment_reader(labels: tuple[str, ...]) -> Callable[[Path], Iterator[Example]]:
    """A function that streams the pairs of a file, which raises ConfigError where a line is not as the release has it.

    Args:
        labels: in the order of their numbers.
    """

    def read(path: Path) -> Iterator[Example]:
        for name, found in read_objects(path):
            first, second = (text_of(path, name, found, key) for key in ("premise", "hypothesis"))
            yield Example(id_in(path, name, found), first, second, label_in(path, name, found, labels))

    return read


def label_in(path: Path, name: str, found: dict[str, Any], labels: tuple[str, ...]) -> int:
    """The number of the label of a line: a text, or true, false, 0 or 1. UNLABELLED for every line of a test file.

    Raises:
        ConfigError: there is no label, as in a test file, or an unknown one.
    """
    if path.name == TEST_FILE:
        return UNLABELLED
    label = found.get("label")
    if isinstance(label, bool | int) and len(labels) == 2 and int(label) in (0, 1):
        return int(label)
    if label not in labels:
        known = ", ".join(labels)
        hint = "; files of test sets have no labels" if label is None else ""
        raise wrong_line(path, name, f"the label is {label!r}, not one of {known}{hint}")
    return labels.index(label)
