"""STS-B: how similar are two sentences, from 0 to 5? (Cer et al. 2017; GLUE, Wang et al. 2019, section 3.2).

5,749 training and 1,500 evaluation pairs in the official release.
"""

from __future__ import annotations

from typing import Any, Literal

from pipeline.tune.files.tables import GlueFiles
from pipeline.tune.tasks.glue import GlueTaskConfig

FILES = GlueFiles(
    folder="STS-B",
    texts=("sentence1", "sentence2"),
    label="score",
    bounds=(0.0, 5.0),
)


class StsbConfig(GlueTaskConfig):
    """The Semantic Textual Similarity Benchmark, a regression."""

    kind: Literal["stsb"] = "stsb"

    files = FILES
    regression = True
    metrics = ("pearson", "spearman")
    leaderboard = (("", "test", "STS-B.tsv"),)
    evaluation_sets = (FILES.evaluation_set("stsb"),)

    def submitted(self, prediction: Any) -> str:
        """The number with three decimals, inside of the bounds that human scores have."""
        return f"{min(max(float(prediction), 0.0), 5.0):.3f}"
