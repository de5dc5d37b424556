"""SST-5: how positive is the film review sentence, in five classes? (Socher et al. 2013).

8,544 training, 1,101 development and 2,210 test sentences in the official release.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.finetune.files.annotated import read_labelled_trees, read_trees
from pipeline.finetune.files.evaluation_set import EvaluationSet, Files
from pipeline.finetune.files.lines import require_file
from pipeline.finetune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.finetune.task import TaskData

ORIGIN = "the trees of the Stanford Sentiment Treebank (nlp.stanford.edu/sentiment)"


class Sst5Config(ClassificationTaskConfig):
    """The Stanford Sentiment Treebank, five classes of whole sentences."""

    kind: Literal["sst5"] = "sst5"
    train: Path
    """The file of trees to learn from; `train.txt` in the official release."""
    evaluation: Path
    """The file of trees to score on."""

    metrics = ("accuracy", "macro_f1")
    evaluation_sets = (
        EvaluationSet(
            "sst5", (Files(("sst5/dev.txt",), read_trees), Files(("sst5/test.txt",), read_trees)), ORIGIN
        ),
    )

    def load(self) -> TaskData[Example]:
        """Read both files.

        Raises:
            MissingInputError: a file is missing.
            ConfigError: a line holds no tree of labels from 0 to 4.
        """
        paths = [self.train, self.evaluation]
        train, evaluation = (
            [
                Example(name, text, None, label)
                for name, text, label in read_labelled_trees(
                    require_file(path, ORIGIN, "`train` and `evaluation`")
                )
            ]
            for path in paths
        )
        labels = ("very negative", "negative", "neutral", "positive", "very positive")
        return TaskData.of_files(train, evaluation, paths, labels)
