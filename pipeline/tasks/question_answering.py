"""Question answering by spans of passages.

SQuAD 1.1 (Rajpurkar et al. 2016; Devlin et al. 2019, section 4.2) has 87,599 training and 10,570 evaluation questions
in the official release; SQuAD 2.0, with questions that the passage does not answer (Rajpurkar et al. 2018; Devlin et
al. 2019, section 4.3), has 130,319 and 11,873.

MRQA is data sets in one layout (Fisch et al. 2019): NewsQA, TriviaQA, SearchQA, HotpotQA, NaturalQuestions and, out of
domain, BioASQ, DROP, DuoRC, RACE, RelationExtraction and TextbookQA. Passages of several parts have the tokens [TLE],
[PAR] and [DOC] in them, which are read as text.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import orjson
from pydantic import Field

from pipeline.tasks.files.lines import wrong_file
from pipeline.tasks.files.rows import read_objects
from pipeline.tasks.forms import Answer, Question, SpanTaskConfig
from pipeline.tasks.metrics.squad import UNANSWERABLE_METRICS
from pipeline.tasks.task import EvaluationSet, NamedText, ReadTexts, TwoFilesTaskConfig

Passage = tuple[str, str, list[Question]]
"""Name, text and questions."""
SQUAD_ORIGIN = "SQuAD (rajpurkar.github.io/SQuAD-explorer)"
MRQA_ORIGIN = "a file of the MRQA 2019 shared task (github.com/mrqa/MRQA-Shared-Task-2019)"


def read_squad(path: Path) -> Iterator[Passage]:
    """Stream the paragraphs of a file of SQuAD or XQuAD; names are `TITLE#NUMBER`, counted per article from 0.

    Raises:
        ConfigError: the file is not SQuAD's JSON.
    """
    try:
        for article in orjson.loads(path.read_bytes().removeprefix(BOM_UTF8))["data"]:
            for number, paragraph in enumerate(article["paragraphs"]):
                context, questions = paragraph["context"], []
                for entry in paragraph["qas"]:
                    answers = tuple(
                        Answer(each["text"], each["answer_start"]) for each in entry.get("answers", ())
                    )
                    questions.append(Question(str(entry["id"]), entry["question"], context, answers))
                yield f"{article.get('title')}#{number}", context, questions
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise wrong_file(f"{path} is not JSON as SQuAD has it: {error!r}") from None


def read_mrqa(path: Path) -> Iterator[Passage]:
    """Stream the passages of a file of MRQA, gzipped or plain, named by their lines, such as `NewsQA-17`.

    Answers are the passage's characters at the places that the file found (`detected_answers`); the texts that count as
    right are those of `answers`, as in the shared task's evaluation.

    Raises:
        ConfigError: the file is damaged, or a line is not as described.
    """
    for row in read_objects(path):
        found = row.values
        if "header" in found:
            continue
        try:
            context, questions = found["context"], []
            for entry in found["qas"]:
                answers = []
                for first, last in (
                    span for each in entry["detected_answers"] for span in each["char_spans"]
                ):
                    if not 0 <= first <= last < len(context):
                        problem = f"characters {first} to {last} are not in the passage"
                        raise ValueError(f"question {entry['qid']}: {problem}")
                    # The last character of a span belongs to it.
                    answers.append(Answer(context[first : last + 1], first))
                accepted = tuple(entry["answers"])
                questions.append(
                    Question(str(entry["qid"]), entry["question"], context, tuple(answers), accepted)
                )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise row.error(f"no passage as MRQA has it: {error!r}") from None
        yield row.name, context, questions


def _texts_of(read: Callable[[Path], Iterator[Passage]]) -> ReadTexts:
    """Turn a reader of passages into one of texts: passages, and questions, named by their ids."""

    def read_texts(path: Path) -> Iterator[NamedText]:
        for name, context, questions in read(path):
            yield name, context
            yield from ((question.id, question.question) for question in questions)

    return read_texts


def _read_xquad_texts(path: Path) -> Iterator[NamedText]:
    """Like SQuAD; the names begin with the language, because the ids are the same in all of them."""
    language = path.stem.rpartition(".")[2]
    return ((f"{language}:{name}", text) for name, text in _texts_of(read_squad)(path))


XQUAD = EvaluationSet(
    "xquad", "XQuAD (github.com/google-deepmind/xquad)", _read_xquad_texts, ("xquad/xquad.*.json",)
)
"""A set that no task here is trained on."""


def read_questions(path: Path, *, answerable: bool = True) -> list[Question]:
    """The questions of one file of SQuAD; those about one passage share its text.

    Args:
        answerable: whether every question must have an answer.

    Raises:
        ConfigError: the file is not SQuAD's JSON, or an answer is missing or not where the file says.
    """
    questions = [question for *_, found in read_squad(path) for question in found]
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


class SquadConfig(TwoFilesTaskConfig, SpanTaskConfig):
    """The Stanford Question Answering Dataset, from its official JSON files."""

    kind: Literal["squad"] = "squad"

    origin = f"train-v1.1.json and dev-v1.1.json of {SQUAD_ORIGIN}"
    metrics = ("f1", "exact_match")
    evaluation_sets = (
        EvaluationSet("squad1", SQUAD_ORIGIN, _texts_of(read_squad), ("squad/dev-v1.1*.json",)),
    )

    def examples(self, path: Path) -> list[Question]:
        return read_questions(path)


class Squad2Config(TwoFilesTaskConfig, SpanTaskConfig):
    """The Stanford Question Answering Dataset with questions that have no answer, from its official JSON files."""

    kind: Literal["squad2"] = "squad2"
    max_no_answer: float | None = Field(default=None, ge=0, le=1)
    """The probability of having no answer above which none is predicted, in [0, 1]; null takes the one that gives the
    best F1 on the evaluation questions, as scores on the development set are published."""

    # A decoder's first token has read nothing of the question, so it cannot say whether there is an answer.
    carriers = ("encoder", "encoder_decoder")
    answerable = False
    origin = f"train-v2.0.json and dev-v2.0.json of {SQUAD_ORIGIN}"
    metrics = UNANSWERABLE_METRICS
    evaluation_sets = (
        EvaluationSet("squad2", SQUAD_ORIGIN, _texts_of(read_squad), ("squad/dev-v2.0*.json",)),
    )

    def examples(self, path: Path) -> list[Question]:
        return read_questions(path, answerable=False)

    def no_answer_threshold(self) -> float | None:
        return self.max_no_answer


class MrqaConfig(TwoFilesTaskConfig, SpanTaskConfig):
    """A data set of the MRQA 2019 shared task, from files such as NewsQA.jsonl.gz."""

    kind: Literal["mrqa"] = "mrqa"

    origin = MRQA_ORIGIN
    metrics = ("f1", "exact_match")
    evaluation_sets = (
        EvaluationSet(
            "mrqa", MRQA_ORIGIN, _texts_of(read_mrqa), (("mrqa/dev/*.jsonl.gz", "mrqa/*.jsonl.gz"),)
        ),
    )

    def examples(self, path: Path) -> list[Question]:
        """The questions of a file, which all have an answer."""
        questions = [question for *_, found in read_mrqa(path) for question in found]
        for question in questions:
            if not question.answers or not question.accepted:
                raise wrong_file(f"{path}, question {question.id}: there is no answer")
        return questions
