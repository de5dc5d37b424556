"""CB: is the speaker committed to the clause? (de Marneffe et al. 2019; SuperGLUE, Wang et al. 2019b).

250 training and 56 evaluation pairs in the official release. The leaderboard takes the mean of both metrics.
"""

from __future__ import annotations

from typing import Literal

from pipeline.tune.tasks.superglue import SuperGlueFiles, SuperGlueLabelsConfig, entailment_reader

LABELS = ("entailment", "contradiction", "neutral")
FILES = SuperGlueFiles("CB", entailment_reader(LABELS))


class CbConfig(SuperGlueLabelsConfig):
    """CommitmentBank."""

    kind: Literal["cb"] = "cb"

    files = FILES
    labels = LABELS
    submitted = LABELS
    metrics = ("macro_f1", "accuracy")
    evaluation_sets = (FILES.evaluation_set("cb"),)
