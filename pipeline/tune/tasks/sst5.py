"""SST-5: how positive is the film review sentence, in five classes? (Socher et al. 2013).

8,544 training, 1,101 development and 2,210 test sentences in the official release.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.tune.files.annotated import read_labelled_trees, read_trees
from pipeline.tune.files.evaluation_set import EvaluationSet, Files
from pipeline.tune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.tune.tasks.two_files import TwoFilesTaskConfig

ORIGIN = "the trees of the Stanford Sentiment Treebank (nlp.stanford.edu/sentiment)"


class Sst5Config(TwoFilesTaskConfig, ClassificationTaskConfig):
    """The Stanford Sentiment Treebank, five classes of whole sentences, from files of trees such as train.txt."""

    kind: Literal["sst5"] = "sst5"

    origin = ORIGIN
    labels = ("very negative", "negative", "neutral", "positive", "very positive")
    metrics = ("accuracy", "macro_f1")
    evaluation_sets = (
        EvaluationSet(
            "sst5", (Files(("sst5/dev.txt",), read_trees), Files(("sst5/test.txt",), read_trees)), ORIGIN
        ),
    )

    def examples(self, path: Path) -> Iterator[Example]:
        """The sentences of a file of trees."""
        return (Example(name, text, None, label) for name, text, label in read_labelled_trees(path))
