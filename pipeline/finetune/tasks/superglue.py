"""Tasks of SuperGLUE (Wang et al. 2019b), whose folder holds train.jsonl, val.jsonl and, without labels, test.jsonl."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from pipeline.finetune.files.evaluation_set import EvaluationSet, Files, texts_of
from pipeline.finetune.files.lines import read_objects, require_file, text_of, wrong_line
from pipeline.finetune.forms.classification.settings import Example
from pipeline.finetune.task import TaskConfig, TaskData


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
        """The texts of val.jsonl."""
        read = texts_of(lambda path: ((each.id, each.texts) for each in self.read(path)))
        return EvaluationSet(name, (Files((f"superglue/{self.folder}/val.jsonl",), read),), self.origin)


class SuperGlueTaskConfig(TaskConfig):
    """Settings that the tasks of SuperGLUE share."""

    path: Path
    """The unpacked folder, with train.jsonl and val.jsonl."""

    files: ClassVar[SuperGlueFiles]
    labels: ClassVar[tuple[str, ...]] = ()

    def load(self) -> TaskData[Any]:
        """Read `train.jsonl` and `val.jsonl`."""
        paths = [self.path / "train.jsonl", self.path / "val.jsonl"]
        train, evaluation = map(self.files.examples, paths)
        return TaskData.of_files(train, evaluation, paths, self.labels)


def entailment_reader(labels: tuple[str, ...]) -> Callable[[Path], Iterator[Example]]:
    """A function that streams the pairs of a file, which raises ConfigError where a line is not as the release has it.

    Args:
        labels: in the order of their numbers.
    """

    def read(path: Path) -> Iterator[Example]:
        for name, found in read_objects(path):
            first, second = (text_of(path, name, found, key) for key in ("premise", "hypothesis"))
            yield Example(name, first, second, label_in(path, name, found, labels))

    return read


def label_in(path: Path, name: str, found: dict[str, Any], labels: tuple[str, ...]) -> int:
    """The number of the label of a line: a text, or true, false, 0 or 1.

    Raises:
        ConfigError: there is no label, as in a test file, or an unknown one.
    """
    label = found.get("label")
    if isinstance(label, bool | int) and len(labels) == 2 and int(label) in (0, 1):
        return int(label)
    if label not in labels:
        known = ", ".join(labels)
        hint = "; files of test sets have no labels" if label is None else ""
        raise wrong_line(path, name, f"the label is {label!r}, not one of {known}{hint}")
    return labels.index(label)
