"""SST-2: is the film review phrase positive? (Socher et al. 2013; GLUE, Wang et al. 2019, section 3.1).

67,349 training phrases and 872 evaluation sentences in the official release.
"""

from __future__ import annotations

from typing import Literal

from pipeline.tune.files.tables import GlueFiles
from pipeline.tune.tasks.glue import GlueTaskConfig

FILES = GlueFiles(folder="SST-2", texts=("sentence",), label="label", labels=("0", "1"))


class Sst2Config(GlueTaskConfig):
    """The Stanford Sentiment Treebank, two classes."""

    kind: Literal["sst2"] = "sst2"

    files = FILES
    label_names = ("negative", "positive")
    metrics = ("accuracy",)
    leaderboard = (("", "test", "SST-2.tsv"),)
    evaluation_sets = (FILES.evaluation_set("sst2"),)
