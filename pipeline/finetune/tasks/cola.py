"""CoLA: is the sentence acceptable English? (Warstadt et al. 2019; GLUE, Wang et al. 2019, section 3.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.finetune.tasks.base import TaskConfig, TaskData
from pipeline.finetune.tasks.tsv import TsvLayout, load_tsv_task

METRICS = ("matthews", "accuracy")
LAYOUT = TsvLayout(
    columns=("source", "label", "original judgment", "sentence"),
    has_header=False,
    text_a="sentence",
    text_b=None,
    label="label",
    labels=("0", "1"),
    archive="CoLA.zip of the GLUE benchmark (gluebenchmark.com/tasks)",
)


class ColaConfig(TaskConfig):
    """The Corpus of Linguistic Acceptability."""

    kind: Literal["cola"] = "cola"
    path: Path
    """The unpacked folder `CoLA`, with train.tsv and dev.tsv."""


def load(config: ColaConfig) -> TaskData:
    """8,551 training and 1,043 evaluation sentences in the official release."""
    return load_tsv_task(config.path, LAYOUT, ("unacceptable", "acceptable"))
