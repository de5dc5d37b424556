"""SQuAD 2.0: which span of the passage answers, or is there no answer? (Rajpurkar et al. 2018; Devlin et al. 2019,
section 4.3).

130,319 training and 11,873 evaluation questions in the official release.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.finetune.files.squad import squad_evaluation_set
from pipeline.finetune.forms.spans.settings import Question, SpanTaskConfig
from pipeline.finetune.task import TaskData
from pipeline.finetune.tasks.squad import read_questions


class Squad2Config(SpanTaskConfig):
    """The Stanford Question Answering Dataset with questions that have no answer."""

    kind: Literal["squad2"] = "squad2"
    train: Path
    """The official json to learn from."""
    evaluation: Path
    """The official json to score on."""
    max_no_answer: float | None = Field(default=None, ge=0, le=1)
    """The probability of having no answer above which none is predicted, in [0, 1]; null takes the one that gives the
    best F1 on the evaluation questions, as scores on the development set are published."""

    # A decoder's first token has read nothing of the question, so it cannot say whether there is an answer.
    carriers = ("encoder", "encoder_decoder")
    answerable = False
    metrics = (
        *("f1", "exact_match", "has_answer_f1", "has_answer_exact", "no_answer_f1", "no_answer_exact"),
        *("best_f1", "best_f1_thresh", "best_exact", "best_exact_thresh"),
    )
    evaluation_sets = (squad_evaluation_set("squad2", "squad/dev-v2.0*.json"),)

    def load(self) -> TaskData[Question]:
        """Read both files.

        Raises:
            MissingInputError: a file is missing.
            ConfigError: a file is not SQuAD's json, or an answer is not where the file says.
        """
        train, evaluation = (
            read_questions(path, "v2.0", answerable=False) for path in (self.train, self.evaluation)
        )
        return TaskData.of_files(train, evaluation, [self.train, self.evaluation])

    def no_answer_threshold(self) -> float | None:
        """`max_no_answer`."""
        return self.max_no_answer
