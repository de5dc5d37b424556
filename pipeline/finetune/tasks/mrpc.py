"""MRPC: do two sentences mean the same? (Dolan and Brockett 2005; GLUE, Wang et al. 2019, section 3.2).

3,668 training and 408 evaluation pairs in the official release; copies with fewer are accepted, too. GLUE's
download_glue_data.py makes the files from msr_paraphrase_train.txt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.finetune.files.tables import GlueFiles
from pipeline.finetune.tasks.glue import GlueTaskConfig

FILES = GlueFiles(folder="MRPC", texts=("#1 String", "#2 String"), label="Quality", labels=("0", "1"))


class MrpcConfig(GlueTaskConfig):
    """The Microsoft Research Paraphrase Corpus."""

    kind: Literal["mrpc"] = "mrpc"
    path: Path
    """The folder `MRPC`, with train.tsv and dev.tsv."""

    files = FILES
    label_names = ("different", "paraphrase")
    metrics = ("f1", "accuracy")
    evaluation_sets = (FILES.evaluation_set("mrpc"),)
