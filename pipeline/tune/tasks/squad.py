"""SQuAD 1.1: which span of the passage answers? (Rajpurkar et al. 2016; Devlin et al. 2019, section 4.2); and SQuAD
2.0, with questions that the passage does not answer (Rajpurkar et al. 2018; Devlin et al. 2019, section 4.3).

87,599 training and 10,570 evaluation questions in the official release of 1.1; 130,319 and 11,873 in that of 2.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.tune.files.lines import wrong_file
from pipeline.tune.files.squad import ORIGIN, read_paragraphs, squad_evaluation_set
from pipeline.tune.forms.spans.settings import Question, SpanTaskConfig
from pipeline.tune.metrics.squad2 import UNANSWERABLE_METRICS
from pipeline.tune.tasks.two_files import TwoFilesTaskConfig


class SquadConfig(TwoFilesTaskConfig, SpanTaskConfig):
    """The Stanford Question Answering Dataset, from its official JSON files."""

    kind: Literal["squad"] = "squad"

    origin = f"train-v1.1.json and dev-v1.1.json of {ORIGIN}"
    metrics = ("f1", "exact_match")
    evaluation_sets = (squad_evaluation_set("squad1", "squad/dev-v1.1*.json"),)

    def examples(self, path: Path) -> list[Question]:
        """The questions of a file."""
        return read_questions(path)


def read_questions(path: Path, *, answerable: bool = True) -> list[Question]:
    """The questions of one file; those about one passage share its text.

    Args:
        answerable: whether every question must have an answer.

    Raises:
        ConfigError: the file is not SQuAD's JSON, or an answer is missing or not where the file says.
    """
    questions = [question for *_, found in read_paragraphs(path) for question in found]
    for question in questions:
        if answerable and not question.answers:
            raise wrong_file(
                f"{path}, question {question.id}: there is no answer, which only SQuAD 2.0 allows"
            )
        for answer in question.answers:
            if question.context[answer.start : answer.start + len(answer.text)] != answer.text:
                problem = f"the answer {answer.text!r} is not at character {answer.start}"
                raise wrong_file(f"{path}, question {question.id}: {problem}")
    return questions


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
