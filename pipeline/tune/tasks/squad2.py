"""SQuAD 2.0: which span of the passage answers, or is there no answer? (Rajpurkar et al. 2018; Devlin et al. 2019,
section 4.3).

130,319 training and 11,873 evaluation questions in the official release.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.tune.files.squad import ORIGIN, squad_evaluation_set
from pipeline.tune.forms.spans.settings import Question, SpanTaskConfig
from pipeline.tune.metrics.squad2 import UNANSWERABLE_METRICS
from pipeline.tune.tasks.squad import read_questions
from pipeline.tune.tasks.two_files import TwoFilesTaskConfig


class Squad2Config(TwoFilesTaskConfig, SpanTaskConfig):
    """The Stanford Question Answering Dataset with questions that have no answer, from its official JSON files."""

    kind: Literal["squad2"] = "squad2"
    max_no_answer: float | None = Field(default=None, ge=0, le=1)
    """The probability of having no answer above which none is predicted, in [0, 1]; null takes the one that gives the
    best F1 on the evaluation questions, as scores on the development set are published."""

    # A decoder's first token has read nothing of the question, so it cannot say whether there is an answer.
    carriers = ("encoder", "encoder_decoder")
    answerable = False
    origin = f"train-v2.0.json and dev-v2.0.json of {ORIGIN}"
    metrics = UNANSWERABLE_METRICS
    evaluation_sets = (squad_evaluation_set("squad2", "squad/dev-v2.0*.json"),)

    def examples(self, path: Path) -> list[Question]:
        """The questions of a file."""
        return read_questions(path, answerable=False)

    def no_answer_threshold(self) -> float | None:
        """`max_no_answer`."""
        return self.max_no_answer
