"""WNLI: does text two, with a pronoun resolved, follow from text one? (Levesque et al. 2011; GLUE, Wang et al. 2019,
section 3.3).

635 training and 71 evaluation pairs in the official release. The evaluation pairs repeat sentences of the training
pairs with the opposite label, so a network that learns the training pairs by heart scores below chance.
"""

from __future__ import annotations

from typing import Literal

from pipeline.tune.files.tables import GlueFiles
from pipeline.tune.tasks.glue import GlueTaskConfig

FILES = GlueFiles(folder="WNLI", texts=("sentence1", "sentence2"), label="label", labels=("0", "1"))


class WnliConfig(GlueTaskConfig):
    """Winograd schemas as inference."""

    kind: Literal["wnli"] = "wnli"

    files = FILES
    label_names = ("not_entailment", "entailment")
    metrics = ("accuracy",)
    leaderboard = (("", "test", "WNLI.tsv"),)
    evaluation_sets = (FILES.evaluation_set("wnli"),)
