"""MRQA: question answering by spans on data sets in one layout (Fisch et al. 2019): NewsQA, TriviaQA, SearchQA,
HotpotQA, NaturalQuestions and, out of domain, BioASQ, DROP, DuoRC, RACE, RelationExtraction and TextbookQA.

Scored as SQuAD 1.1. Passages of several parts have the tokens [TLE], [PAR] and [DOC] in them, which are read as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pipeline.tune.files.evaluation_set import EvaluationSet, Files, NamedText
from pipeline.tune.files.lines import read_objects, wrong_file, wrong_line
from pipeline.tune.forms.spans.settings import Answer, Question, SpanTaskConfig
from pipeline.tune.tasks.two_files import TwoFilesTaskConfig

ORIGIN = "a file of the MRQA 2019 shared task (github.com/mrqa/MRQA-Shared-Task-2019)"


def read_passages(path: Path) -> Iterator[tuple[str, str, list[Question]]]:
    """Stream the passages of one file, gzipped or plain: name (such as `NewsQA-17`), text, questions.

    Answers are the passage's characters at the places that the file found (`detected_answers`); the texts that count as
    right are those of `answers`, as in the shared task's evaluation.

    Raises:
        ConfigError: the file is damaged, or a line is not as described.
    """
    for name, found in read_objects(path):
        if "header" not in found:
            yield name, *_passage(path, name, found)


def read_mrqa_texts(path: Path) -> Iterator[NamedText]:
    """Passages, named by their lines, and questions, named by their ids."""
    for name, context, questions in read_passages(path):
        yield name, context
        yield from ((question.id, question.question) for question in questions)


def _passage(path: Path, name: str, found: dict[str, Any]) -> tuple[str, list[Question]]:
    try:
        context = found["context"]
        return context, [_question(context, entry) for entry in found["qas"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise wrong_line(path, name, f"no passage as MRQA has it: {error!r}") from None


def _question(context: str, entry: dict[str, Any]) -> Question:
    spans = [span for answer in entry["detected_answers"] for span in answer["char_spans"]]
    answers = []
    # The last character of a span belongs to it.
    for first, last in spans:
        if not 0 <= first <= last < len(context):
            raise ValueError(f"question {entry['qid']}: characters {first} to {last} are not in the passage")
        answers.append(Answer(context[first : last + 1], first))
    return Question(str(entry["qid"]), entry["question"], context, tuple(answers), tuple(entry["answers"]))


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
