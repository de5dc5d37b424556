"""Published questions, answered by spans of passages or by one of several choices.

SQuAD 1.1 (Rajpurkar et al. 2016; Devlin et al. 2019, section 4.2) has 87,599 training and 10,570 evaluation questions
in the official release; SQuAD 2.0, with questions that the passage does not answer (Rajpurkar et al. 2018; Devlin et
al. 2019, section 4.3), has 130,319 and 11,873.

MRQA is data sets in one layout (Fisch et al. 2019): NewsQA, TriviaQA, SearchQA, HotpotQA, NaturalQuestions and, out of
domain, BioASQ, DROP, DuoRC, RACE, RelationExtraction and TextbookQA. Passages of several parts have the tokens [TLE],
[PAR] and [DOC] in them, which are read as text.

SWAG: what happens next? (Zellers et al. 2018; Devlin et al. 2019, section 4.4). 73,546 training and 20,006 evaluation
situations in the official release.

RACE: which of four answers is right, by the passage of an English exam? (Lai et al. 2017; Liu et al. 2019, section
5.3). 87,866 training, 4,887 development and 4,934 test questions in the official release.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import orjson
from pydantic import Field

from cluster.artefacts.errors import MissingInputError
from pipeline.tasks.files.lines import require_file, wrong_file
from pipeline.tasks.files.rows import read_objects, read_rows
from pipeline.tasks.forms import Answer, Choices, ChoicesTaskConfig, Question, SpanTaskConfig
from pipeline.tasks.metrics.squad import UNANSWERABLE_METRICS
from pipeline.tasks.task import (
    EvaluationSet,
    NamedText,
    ReadTexts,
    TaskData,
    TwoFilesTaskConfig,
    folder_input,
    texts_of,
)

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


SWAG_ORIGIN = "train.csv and val.csv of SWAG (github.com/rowanz/swagaf)"
NUM_ENDINGS = 4
SWAG_COLUMNS = ("sent1", "sent2", *(f"ending{number}" for number in range(NUM_ENDINGS)), "label")


def read_swag(path: Path) -> Iterator[Choices]:
    """Stream the situations of a file: the first sentence, and the begin of the second with each ending.

    Raises:
        ConfigError: a column is missing, or a label is no number of an ending.
    """
    for row in read_rows(path):
        if missing := [column for column in SWAG_COLUMNS if column not in row.values]:
            raise row.error(f"there is no column `{missing[0]}` among {list(row.values)}")
        first, begin, *endings, label = (row.values[column] for column in SWAG_COLUMNS)
        if label not in map(str, range(NUM_ENDINGS)):
            raise row.error(f"the label is {label!r}, not from 0 to {NUM_ENDINGS - 1}")
        yield Choices(row.name, tuple((first, f"{begin} {ending}") for ending in endings), int(label))


class SwagConfig(ChoicesTaskConfig):
    """Situations With Adversarial Generations."""

    kind: Literal["swag"] = "swag"
    path: Path
    """The folder with train.csv and val.csv."""

    metrics = ("accuracy",)
    evaluation_sets = (EvaluationSet("swag", SWAG_ORIGIN, texts_of(read_swag), ("swag/val.csv",)),)

    def load(self) -> TaskData[Choices]:
        """Read `train.csv` and `val.csv`."""
        paths = [require_file(self.path / name, SWAG_ORIGIN, "`path`") for name in ("train.csv", "val.csv")]
        train, evaluation = ([*read_swag(path)] for path in paths)
        return TaskData.of_files(train, evaluation, paths)


RACE_ORIGIN = "the contents of RACE.tar.gz (www.cs.cmu.edu/~glai1/data/race)"
LETTERS = "ABCD"
BLANK = "_"
SCHOOLS = ("middle", "high")


def read_race(path: Path) -> Iterator[Choices]:
    """Stream the questions of one passage: the passage, and the question with each answer, or its blanks filled.

    Raises:
        ConfigError: the file is not as the release has it.
    """
    try:
        found = orjson.loads(path.read_bytes().removeprefix(BOM_UTF8))
        article = " ".join(found["article"].split())
        asked = zip(found["questions"], found["options"], found["answers"], strict=True)
        for number, (question, options, answer) in enumerate(asked):
            # All blanks, as in the released preprocessing (fairseq, examples/roberta/preprocess_RACE.py).
            pairs = tuple(
                (article, question.replace(BLANK, each) if BLANK in question else f"{question} {each}")
                for each in options
            )
            label = [*LETTERS[: len(pairs)]].index(answer)
            yield Choices(f"{path.stem}-{number}", pairs, label, path.parent.name)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise wrong_file(f"{path} is not JSON as RACE has it: {error!r}") from None


class RaceConfig(ChoicesTaskConfig):
    """Reading comprehension from exams of middle and high schools."""

    kind: Literal["race"] = "race"
    path: Path
    """The unpacked folder `RACE`, with train/, dev/ and test/, each with middle/ and high/."""
    split: Literal["dev", "test"] = "dev"
    """The part to score on."""

    metrics = ("accuracy",)
    evaluation_sets = (
        EvaluationSet("race", RACE_ORIGIN, texts_of(read_race), ("race/dev/*/*.txt", "race/test/*/*.txt")),
    )

    def load(self) -> TaskData[Choices]:
        parts = {split: sorted((self.path / split).glob("*/*.txt")) for split in ("train", self.split)}
        for split, paths in parts.items():
            if not paths:
                raise MissingInputError(
                    f"There are no passages {self.path / split}/*/*.txt.",
                    next_step=f"put {RACE_ORIGIN} there, or correct the task's `path`",
                )
        train, evaluation = ([each for path in paths for each in read_race(path)] for paths in parts.values())
        inputs = [folder_input(self.path / split, paths) for split, paths in parts.items()]
        return TaskData.of_files(train, evaluation, inputs)

    def measure(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, float]:
        """Accuracy on all questions, and on those of each kind of school."""
        found = super().measure(examples, outputs)
        for school in SCHOOLS:
            rows = [number for number, each in enumerate(examples) if each.group == school]
            if rows:
                measured = super().measure([examples[number] for number in rows], outputs[rows])
                found[f"accuracy_{school}"] = measured["accuracy"]
        return found
