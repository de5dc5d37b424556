"""CB: is the speaker committed to the clause? (de Marneffe et al. 2019; SuperGLUE, Wang et al. 2019b).

250 training and 56 evaluation pairs in the official release. The leaderboard takes the mean of both metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.finetune.files.lines import read_objects, text_of
from pipeline.finetune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.finetune.tasks.superglue import SuperGlueFiles, SuperGlueTaskConfig, label_in

LABELS = ("entailment", "contradiction", "neutral")


def read_examples(path: Path) -> Iterator[Example]:
    """Stream the examples of a file.

    Raises:
        ConfigError: a line is not as the release has it.
    """
    for name, found in read_objects(path):
        first, second = (text_of(path, name, found, key) for key in ("premise", "hypothesis"))
        yield Example(name, first, second, label_in(path, name, found, LABELS))


FILES = SuperGlueFiles("CB", read_examples)


class CbConfig(SuperGlueTaskConfig, ClassificationTaskConfig):
    """CommitmentBank."""

    kind: Literal["cb"] = "cb"

    files = FILES
    labels = LABELS
    metrics = ("macro_f1", "accuracy")
    evaluation_sets = (FILES.evaluation_set("cb"),)
