"""CoLA: is the sentence acceptable English? (Warstadt et al. 2019; GLUE, Wang et al. 2019, section 3.1).

8,551 training and 1,043 evaluation sentences in the official release.
"""

from __future__ import annotations

from typing import Literal

from pipeline.tune.files.tables import GlueFiles
from pipeline.tune.tasks.glue import GlueTaskConfig

FILES = GlueFiles(
    folder="CoLA",
    texts=("sentence",),
    label="label",
    labels=("0", "1"),
    header=("source", "label", "original judgment", "sentence"),
)


class ColaConfig(GlueTaskConfig):
    """The Corpus of Linguistic Acceptability."""

    kind: Literal["cola"] = "cola"

    files = FILES
    label_names = ("unacceptable", "acceptable")
    metrics = ("matthews", "accuracy")
    leaderboard = (("", "test", "CoLA.tsv"),)
    evaluation_sets = (FILES.evaluation_set("cola"),)
