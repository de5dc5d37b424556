"""RTE: does text two follow from text one? (Dagan et al. 2006; GLUE, Wang et al. 2019, section 3.3).

2,490 training and 277 evaluation pairs in the official release.
"""

from __future__ import annotations

from typing import Literal

from pipeline.tune.files.tables import GlueFiles
from pipeline.tune.tasks.glue import GlueTaskConfig

FILES = GlueFiles(
    folder="RTE",
    texts=("sentence1", "sentence2"),
    label="label",
    labels=("entailment", "not_entailment"),
)


class RteConfig(GlueTaskConfig):
    """Recognizing Textual Entailment."""

    kind: Literal["rte"] = "rte"

    files = FILES
    metrics = ("accuracy",)
    leaderboard = (("", "test", "RTE.tsv"),)
    evaluation_sets = (FILES.evaluation_set("rte"),)
