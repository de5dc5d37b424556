"""MRQA: question answering by spans on data sets in one layout (Fisch et al. 2019): NewsQA, TriviaQA, SearchQA,
HotpotQA, NaturalQuestions and, out of domain, BioASQ, DROP, DuoRC, RACE, RelationExtraction and TextbookQA.

Scored as SQuAD 1.1. Passages of several parts have the tokens [TLE], [PAR] and [DOC] in them, which are read as text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipeline.tune.files.evaluation_set import EvaluationSet, Files
from pipeline.tune.files.lines import wrong_file
from pipeline.tune.files.mrqa import ORIGIN, read_mrqa_texts, read_passages
from pipeline.tune.forms.spans.settings import Question, SpanTaskConfig
from pipeline.tune.tasks.two_files import TwoFilesTaskConfig


class MrqaConfig(TwoFilesTaskConfig, SpanTaskConfig):
    """A data set of the MRQA 2019 shared task, from files such as NewsQA.jsonl.gz."""

    kind: Literal["mrqa"] = "mrqa"

    origin = ORIGIN
    metrics = ("f1", "exact_match")
    evaluation_sets = (
        EvaluationSet("mrqa", (Files(("mrqa/dev/*.jsonl.gz", "mrqa/*.jsonl.gz"), read_mrqa_texts),), ORIGIN),
    )

    def examples(self, path: Path) -> list[Question]:
        """The questions of a file, which all have an answer."""
        questions = [question for *_, found in read_passages(path) for question in found]
        for question in questions:
            if not question.answers or not question.accepted:
                raise wrong_file(f"{path}, question {question.id}: there is no answer")
        return questions
