"""Tasks whose configuration names a file to learn from and a file to score on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from pipeline.tune.files.lines import require_file
from pipeline.tune.task import TaskConfig, TaskData


class TwoFilesTaskConfig(TaskConfig):
    """Settings that these tasks share."""

    train: Path
    """The file to learn from."""
    evaluation: Path
    """The file to score on."""

    origin: ClassVar[str]
    """Where such files come from, for messages about missing ones."""
    labels: ClassVar[tuple[str, ...]] = ()
    """Names of the labels, in the order of their numbers; empty where nothing is classified."""

    def load(self) -> TaskData[Any]:
        """Read both files."""
        paths = [self.train, self.evaluation]
        train, evaluation = ([*self.examples(self.required(path))] for path in paths)
        return TaskData.of_files(train, evaluation, paths, self.labels)

    def examples(self, path: Path) -> Iterable[Any]:
        """The examples of a file.

        Raises:
            ConfigError: it is not as described; the line is named.
        """
        raise NotImplementedError

    def required(self, path: Path) -> Path:
        """`path`.

        Raises:
            MissingInputError: there is no such file.
        """
        return require_file(path, self.origin, "`train` and `evaluation`")
