"""SST-2: is the film review phrase positive? (Socher et al. 2013; GLUE, Wang et al. 2019, section 3.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.finetune.tasks.base import TaskConfig, TaskData
from pipeline.finetune.tasks.tsv import TsvLayout, load_tsv_task

METRICS = ("accuracy",)
LAYOUT = TsvLayout(
    columns=("sentence", "label"),
    has_header=True,
    text_a="sentence",
    text_b=None,
    label="label",
    labels=("0", "1"),
    archive="SST-2.zip of the GLUE benchmark (gluebenchmark.com/tasks)",
)


class Sst2Config(TaskConfig):
    """The Stanford Sentiment Treebank, two classes."""

    kind: Literal["sst2"] = "sst2"
    path: Path
    """The unpacked folder `SST-2`, with train.tsv and dev.tsv."""


def load(config: Sst2Config) -> TaskData:
    """67,349 training phrases and 872 evaluation sentences in the official release."""
    return load_tsv_task(config.path, LAYOUT, ("negative", "positive"))
