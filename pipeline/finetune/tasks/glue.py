"""Classification on a task of GLUE, whose folder holds train.tsv and dev.tsv."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pipeline.finetune.files.lines import require_file
from pipeline.finetune.files.tables import GlueFiles
from pipeline.finetune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.finetune.task import TaskData


class GlueTaskConfig(ClassificationTaskConfig):
    """Settings that the tasks of GLUE share."""

    path: Path
    """The unpacked folder, with train.tsv and dev.tsv."""

    files: ClassVar[GlueFiles]
    label_names: ClassVar[tuple[str, ...]] = ()
    """Names of the labels for people, where the files hold numbers only."""

    def load(self) -> TaskData[Example]:
        """Read `train.tsv` and `dev.tsv`.

        Raises:
            MissingInputError: a file is missing; the message names the archive that holds it.
            ConfigError: a line has other columns or an unknown label; file and line are named.
        """
        paths = [self.path / "train.tsv", self.path / "dev.tsv"]
        train, evaluation = map(self._examples, paths)
        return TaskData.of_files(train, evaluation, paths, self.label_names or self.files.labels)

    def _examples(self, path: Path) -> list[Example]:
        require_file(path, self.files.origin, "`path`")
        return [
            Example(name, texts[0], texts[1] if len(texts) > 1 else None, label)
            for name, texts, label in self.files.read_labelled(path)
        ]
