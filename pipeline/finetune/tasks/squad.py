"""SQuAD 1.1: which span of the passage answers? (Rajpurkar et al. 2016; Devlin et al. 2019, section 4.2).

87,599 training and 10,570 evaluation questions in the official release.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.finetune.files.lines import require_file, wrong_file
from pipeline.finetune.files.squad import ORIGIN, read_paragraphs, squad_evaluation_set
from pipeline.finetune.forms.spans.settings import Question, SpanTaskConfig
from pipeline.finetune.task import TaskData


class SquadConfig(SpanTaskConfig):
    """The Stanford Question Answering Dataset."""

    kind: Literal["squad"] = "squad"
    train: Path
    """The official json to learn from."""
    evaluation: Path
    """The official json to score on."""

    metrics = ("f1", "exact_match")
    evaluation_sets = (squad_evaluation_set("squad1", "squad/dev-v1.1*.json"),)

    def load(self) -> TaskData[Question]:
        """Read both files.

        Raises:
            MissingInputError: a file is missing.
            ConfigError: a file is not SQuAD's json, or an answer is not where the file says.
        """
        train, evaluation = read_questions(self.train), read_questions(self.evaluation)
        return TaskData.of_files(train, evaluation, [self.train, self.evaluation])


def read_questions(path: Path, version: str = "v1.1", *, answerable: bool = True) -> list[Question]:
    """The questions of one file; those about one passage share its text.

    Args:
        version: of the official files, for messages.
        answerable: whether every question must have an answer.
    """
    require_file(path, f"train-{version}.json and dev-{version}.json of {ORIGIN}", "`train` and `evaluation`")
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
