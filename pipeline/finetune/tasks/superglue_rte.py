"""RTE in SuperGLUE's layout: does the hypothesis follow from the premise? (Wang et al. 2019b).

2,490 training and 277 evaluation pairs, the same as in GLUE.
"""

from __future__ import annotations

from typing import Literal

from pipeline.finetune.forms.classification.settings import ClassificationTaskConfig
from pipeline.finetune.tasks.superglue import SuperGlueFiles, SuperGlueTaskConfig, entailment_reader

LABELS = ("entailment", "not_entailment")
FILES = SuperGlueFiles("RTE", entailment_reader(LABELS))


class SuperglueRteConfig(SuperGlueTaskConfig, ClassificationTaskConfig):
    """Recognizing Textual Entailment, as JSON lines."""

    kind: Literal["superglue_rte"] = "superglue_rte"

    files = FILES
    labels = LABELS
    metrics = ("accuracy",)
    evaluation_sets = (FILES.evaluation_set("superglue_rte"),)
