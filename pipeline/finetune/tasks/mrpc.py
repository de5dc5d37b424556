"""MRPC: do two sentences mean the same? (Dolan and Brockett 2005; GLUE, Wang et al. 2019, section 3.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.finetune.tasks.base import TaskConfig, TaskData
from pipeline.finetune.tasks.tsv import TsvLayout, load_tsv_task

METRICS = ("f1", "accuracy")
LAYOUT = TsvLayout(
    columns=("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    has_header=True,
    text_a="#1 String",
    text_b="#2 String",
    label="Quality",
    labels=("0", "1"),
    archive="MRPC as GLUE's download_glue_data.py makes it from msr_paraphrase_train.txt",
)


class MrpcConfig(TaskConfig):
    """The Microsoft Research Paraphrase Corpus."""

    kind: Literal["mrpc"] = "mrpc"
    path: Path
    """The folder `MRPC`, with train.tsv and dev.tsv."""


def load(config: MrpcConfig) -> TaskData:
    """3,668 training and 408 evaluation pairs in the official release; copies with fewer are taken too."""
    return load_tsv_task(config.path, LAYOUT, ("different", "paraphrase"))
