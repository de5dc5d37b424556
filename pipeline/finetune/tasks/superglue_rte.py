"""RTE in SuperGLUE's layout: does the hypothesis follow from the premise? (Wang et al. 2019b).

2,490 training and 277 evaluation pairs, the same as in GLUE.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pipeline.finetune.files.lines import read_objects, text_of
from pipeline.finetune.forms.classification.settings import ClassificationTaskConfig, Example
from pipeline.finetune.tasks.superglue import SuperGlueFiles, SuperGlueTaskConfig, label_in

LABELS = ("entailment", "not_entailment")


def read_examples(path: Path) -> Iterator[Example]:
    """Stream the examples of a file.

    Raises:
        ConfigError: a line is not as the release has it.
    """
    for name, found in read_objects(path):
        first, second = (text_of(path, name, found, key) for key in ("premise", "hypothesis"))
        yield Example(name, first, second, label_in(path, name, found, LABELS))


FILES = SuperGlueFiles("RTE", read_examples)


class SuperglueRteConfig(SuperGlueTaskConfig, ClassificationTaskConfig):
    """Recognizing Textual Entailment, as JSON lines."""

    kind: Literal["superglue_rte"] = "superglue_rte"

    files = FILES
    labels = LABELS
    metrics = ("accuracy",)
    evaluation_sets = (FILES.evaluation_set("superglue_rte"),)
