"""RTE: does text two follow from text one? (Dagan et al. 2006; GLUE, Wang et al. 2019, section 3.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.finetune.tasks.base import TaskConfig, TaskData
from pipeline.finetune.tasks.tsv import TsvLayout, load_tsv_task

METRICS = ("accuracy",)
LAYOUT = TsvLayout(
    columns=("index", "sentence1", "sentence2", "label"),
    has_header=True,
    text_a="sentence1",
    text_b="sentence2",
    label="label",
    labels=("entailment", "not_entailment"),
    archive="RTE.zip of the GLUE benchmark (gluebenchmark.com/tasks)",
)


class RteConfig(TaskConfig):
    """Recognizing Textual Entailment."""

    kind: Literal["rte"] = "rte"
    path: Path
    """The unpacked folder `RTE`, with train.tsv and dev.tsv."""


def load(config: RteConfig) -> TaskData:
    """2,490 training and 277 evaluation pairs in the official release."""
    return load_tsv_task(config.path, LAYOUT)
