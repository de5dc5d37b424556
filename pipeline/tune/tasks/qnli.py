"""QNLI: does the sentence answer the question? (Rajpurkar et al. 2016; GLUE, Wang et al. 2019, section 3.3).

104,743 training and 5,463 evaluation pairs in the official release (QNLIv2).
"""

from __future__ import annotations

from typing import Literal

from pipeline.tune.files.tables import GlueFiles
from pipeline.tune.tasks.glue import GlueTaskConfig

FILES = GlueFiles(
    folder="QNLI",
    texts=("question", "sentence"),
    label="label",
    labels=("entailment", "not_entailment"),
    archive="QNLIv2",
)


class QnliConfig(GlueTaskConfig):
    """Questions of SQuAD, each with a sentence of its passage."""

    kind: Literal["qnli"] = "qnli"

    files = FILES
    metrics = ("accuracy",)
    leaderboard = (("", "test", "QNLI.tsv"),)
    evaluation_sets = (FILES.evaluation_set("qnli"),)
