"""Tasks of SuperGLUE (Wang et al. 2019b), whose folder holds train.jsonl, val.jsonl and, without labels, test.jsonl.

Sizes are those of the official release.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.tasks.files.lines import json_lines, require_file
from pipeline.tasks.files.rows import Row, read_objects
from pipeline.tasks.forms import (
    UNLABELLED,
    Choices,
    ChoicesTaskConfig,
    ClassificationTaskConfig,
    Example,
)
from pipeline.tasks.glue import BenchmarkConfig
from pipeline.tasks.task import EvaluationSet, NamedText, TaskData, file_input, texts_of

TEST_FILE = "test.jsonl"
"""Has no labels, but the numbers of its lines."""


class SuperGlueConfig(BenchmarkConfig):
    """A task of SuperGLUE."""

    path: Path
    """The unpacked folder, with train.jsonl and val.jsonl."""

    benchmark = "SuperGLUE benchmark (super.gluebenchmark.com/tasks)"
    files = ("train.jsonl", "val.jsonl", TEST_FILE)

    @classmethod
    def read_texts(cls, path: Path) -> Iterator[NamedText]:
        return texts_of(cls.examples)(path)

    @classmethod
    def examples(cls, path: Path) -> Iterator[Any]:
        """Stream the examples of a file, without labels those of a test file; here one of every line."""
        return (cls.example(row) for row in read_objects(path))

    @classmethod
    def example(cls, row: Row) -> Any:
        """The example of a line; here a pair of texts.

        Raises:
            ConfigError: the line lacks a text or a label.
        """
        first, second = map(row.official_text, cls.texts)
        return Example(id_in(row), first, second, cls.label_in(row, row.values.get("label")))

    @classmethod
    def label_in(cls, row: Row, label: Any) -> int:
        """The index of a label; UNLABELLED for every line of a test file."""
        return UNLABELLED if row.path.name == TEST_FILE else int(cls.label_number(row, label))

    def load(self) -> TaskData[Any]:
        """Read `train.jsonl` and `val.jsonl`, and `test.jsonl` where it is to be predicted."""
        paths = [self.path / name for name in self.files[: 2 + self.submit]]
        train, evaluation, *test = (
            [*self.examples(require_file(path, self.origin(), "`path`"))] for path in paths
        )
        labels = (self.names or self.labels) if self.form == "classification" else ()
        return TaskData.of_files(train, evaluation, paths, labels, *test)

    def submission(
        self, examples: Sequence[Any], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """`idx` and `label` of every test example, as super.gluebenchmark.com takes them (its FAQ), in a file for each
        test set."""
        files: dict[str, list[dict[str, Any]]] = {}
        for example, number in zip(examples, outputs.argmax(-1).tolist(), strict=True):
            rows = files.setdefault(f"{example.group or self.folder}.jsonl", [])
            rows.append({"idx": int(example.id), "label": self.submitted(example, number)})
        return {name: json_lines(rows) for name, rows in files.items()}

    def submitted(self, example: Any, number: int) -> Any:
        """The predicted label, from its index, as the leaderboard takes it."""
        return self.labels[number]


def id_in(row: Row) -> str:
    """The id of a line; in a test file its number, which its prediction is submitted with.

    Raises:
        ConfigError: a line of a test file has no number.
    """
    return number_in(row) if row.path.name == TEST_FILE else row.name


def number_in(row: Row) -> str:
    """The number of a line.

    Raises:
        ConfigError: it has none.
    """
    if not isinstance(row.values.get("idx"), int):
        raise row.error(f"`idx` is {row.values.get('idx')!r}, not a number")
    return str(row.values["idx"])


_TRUTH = ("false", "true")


class BoolqConfig(SuperGlueConfig, ClassificationTaskConfig):
    """Boolean Questions: is the answer to the question, by the passage, yes? (Clark et al. 2019).

    9,427 training and 3,270 evaluation questions.
    """

    kind: Literal["boolq"] = "boolq"

    folder = "BoolQ"
    texts = ("passage", "question")
    labels = _TRUTH
    names = ("no", "yes")
    metrics = ("accuracy",)


class CbConfig(SuperGlueConfig, ClassificationTaskConfig):
    """CommitmentBank: is the speaker committed to the clause? (de Marneffe et al. 2019).

    250 training and 56 evaluation pairs. The leaderboard takes the mean of both metrics.
    """

    kind: Literal["cb"] = "cb"

    folder = "CB"
    texts = ("premise", "hypothesis")
    labels = ("entailment", "contradiction", "neutral")
    metrics = ("macro_f1", "accuracy")


_JOINED = re.compile(r"(?:Word: (.*?)\.\s*)?Sentence 1: (.*?)\s*Sentence 2: (.*)", re.DOTALL)


class WicConfig(SuperGlueConfig, ClassificationTaskConfig):
    """Words in Context: does the word mean the same in both sentences? (Pilehvar and Camacho-Collados 2019).

    5,428 training and 638 evaluation pairs. The word precedes the first sentence, so that any network can read which
    one is meant.
    """

    kind: Literal["wic"] = "wic"

    folder = "WiC"
    labels = _TRUTH
    names = ("different", "same")
    metrics = ("accuracy",)

    @classmethod
    def sets(cls) -> tuple[EvaluationSet, ...]:
        files = ("wic/*.jsonl", "WiC/*.jsonl", "superglue/WiC/val.jsonl")
        return (
            EvaluationSet("wic", cls.origin(), cls.read_texts, (files,), (f"superglue/WiC/{TEST_FILE}",)),
        )

    @classmethod
    def read_texts(cls, path: Path) -> Iterator[NamedText]:
        """Both sentences of every line, which need no label."""
        for row in read_objects(path):
            yield from ((row.name, text) for text in cls.parts(row)[1:])

    @classmethod
    def example(cls, row: Row) -> Example:
        word, first, second = cls.parts(row)
        return Example(id_in(row), f"{word}: {first}", second, cls.label_in(row, row.values.get("label")))

    @staticmethod
    def parts(row: Row) -> tuple[str, str, str]:
        """The word and both sentences of a line: as SuperGLUE has them, or joined in one field `text`."""
        if "text" not in row.values:
            first, second = map(row.official_text, ("sentence1", "sentence2"))
            return str(row.values.get("word", "")), first, second
        if not (match := _JOINED.search(row.official_text("text"))):
            raise row.error("there are no two sentences in `text`")
        return match[1] or "", match[2], match[3]


_RTE_DIAGNOSTICS = {"AX-b": ("sentence1", "sentence2"), "AX-g": ("premise", "hypothesis")}
"""The columns of the texts, by diagnostic set."""


class SuperglueRteConfig(SuperGlueConfig, ClassificationTaskConfig):
    """Recognizing Textual Entailment, as JSON lines: 2,490 training and 277 evaluation pairs, the same as in GLUE.

    A network that was trained on it also answers the diagnostic sets AX-b and AX-g (1,104 and 356 pairs; section 3.3).
    """

    kind: Literal["superglue_rte"] = "superglue_rte"
    ax_b: Path | None = None
    """AX-b.jsonl, linguistic diagnostics, to be predicted for `submit`."""
    ax_g: Path | None = None
    """AX-g.jsonl, gender diagnostics, to be predicted for `submit`."""

    folder = "RTE"
    texts = ("premise", "hypothesis")
    labels = ("entailment", "not_entailment")
    metrics = ("accuracy",)

    def load(self) -> TaskData[Example]:
        """Read the files of RTE, and the diagnostic sets that are named."""
        data = super().load()
        test, inputs = [*data.test], [*data.inputs]
        for name, columns in _RTE_DIAGNOSTICS.items() if self.submit else ():
            setting = name.lower().replace("-", "_")
            if (path := getattr(self, setting)) is None:
                continue
            require_file(path, f"{name}.zip of the SuperGLUE benchmark", f"`{setting}`")
            for row in read_objects(path):
                first, second = map(row.official_text, columns)
                test.append(Example(number_in(row), first, second, UNLABELLED, name))
            inputs.append(file_input(path))
        return dataclasses.replace(data, test=tuple(test), inputs=tuple(inputs))


class MultircConfig(SuperGlueConfig, ClassificationTaskConfig):
    """Multi-Sentence Reading Comprehension: is the answer right, by the paragraph? Questions have several right answers
    (Khashabi et al. 2018).

    5,100 training and 953 evaluation questions, with 27,243 and 4,848 answers.
    """

    kind: Literal["multirc"] = "multirc"

    folder = "MultiRC"
    labels = ("0", "1")
    names = ("wrong", "right")
    metrics = ("f1_answers", "exact_match")

    @classmethod
    def examples(cls, path: Path) -> Iterator[Example]:
        """Stream the answers of a file, each with its paragraph and question; the group is the question."""
        for row in read_objects(path):
            try:
                passage = row.values["passage"]
                for number, question in enumerate(passage["questions"]):
                    for answer in question["answers"]:
                        label = cls.label_in(row, answer.get("label"))
                        asked = f"{question['question']} {answer['text']}"
                        group = f"{row.name}-{number}"
                        if label == UNLABELLED:
                            group = f"{row.values['idx']}-{question['idx']}"
                        yield Example(f"{group}-{answer['idx']}", passage["text"], asked, label, group)
            except (KeyError, TypeError) as error:
                raise row.error(f"no paragraph as MultiRC has it: {error!r}") from None

    def measure(self, examples: Sequence[Example], outputs: np.ndarray) -> dict[str, float]:
        """F1 of right answers over all answers (F1a), and the share of the questions all of whose answers are judged
        rightly (EM)."""
        from pipeline.tasks.metrics import f1

        labels, predicted = np.array([each.label for each in examples]), self.predictions(outputs)
        _, question = np.unique([each.group for each in examples], return_inverse=True)
        wrong = np.bincount(question, labels != predicted)
        return {"f1_answers": f1(labels, predicted), "exact_match": float(np.mean(wrong == 0))}

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """A line for each paragraph of the test set, with every answer of every question, as the leaderboard nests
        them."""
        predicted = zip(examples, self.predictions(outputs).tolist(), strict=True)
        judged = [([int(part) for part in each.id.split("-")], label) for each, label in predicted]
        lines = []
        for passage, of_passage in groupby(judged, key=lambda row: row[0][0]):
            questions = [
                {"idx": question, "answers": [{"idx": ids[2], "label": label} for ids, label in answers]}
                for question, answers in groupby(of_passage, key=lambda row: row[0][1])
            ]
            lines.append({"idx": passage, "passage": {"questions": questions}})
        return {"MultiRC.jsonl": json_lines(lines)}


_ASKED = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


class CopaConfig(SuperGlueConfig, ChoicesTaskConfig):
    """Choice of Plausible Alternatives: which one is the cause, or the effect? (Roemmele et al. 2011).

    400 training and 100 evaluation questions.
    """

    kind: Literal["copa"] = "copa"

    folder = "COPA"
    labels = ("0", "1")
    metrics = ("accuracy",)

    @classmethod
    def example(cls, row: Row) -> Choices:
        """The premise with question and alternative."""
        premise, first, second, asked = map(row.official_text, ("premise", "choice1", "choice2", "question"))
        if asked not in _ASKED:
            raise row.error(f"`question` is {asked!r}, not one of {', '.join(_ASKED)}")
        pairs = tuple((premise, f"{_ASKED[asked]} {choice}") for choice in (first, second))
        return Choices(id_in(row), pairs, cls.label_in(row, row.values.get("label")))

    def submitted(self, example: Choices, number: int) -> int:
        return number


PLACEHOLDER = "@placeholder"


class RecordConfig(SuperGlueConfig, ChoicesTaskConfig):
    """Reading Comprehension with Commonsense Reasoning, as a choice among the passage's entities: which one is left out
    of the query? (Zhang et al. 2018).

    100,730 training and 10,000 evaluation queries.
    """

    kind: Literal["record"] = "record"

    folder = "ReCoRD"
    metrics = ("f1", "exact_match")

    @classmethod
    def examples(cls, path: Path) -> Iterator[Choices]:
        """Stream the queries of a file: the passage with the query for each entity in its place."""
        for row in read_objects(path):
            try:
                passage, is_test = row.values["passage"], path.name == TEST_FILE
                yield from (
                    _choices(row.name, passage, query, is_test=is_test) for query in row.values["qas"]
                )
            except (KeyError, TypeError, ValueError) as error:
                raise row.error(f"no passage as ReCoRD has it: {error!r}") from None

    def measure(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, float]:
        """Overlap in words, and equality, with the nearest answer, as SQuAD 1.1 measures them."""
        from pipeline.tasks.metrics.squad import answer_metrics

        right = [[each.answers[number] for number in each.accepted] for each in examples]
        chosen = zip(examples, self.predictions(outputs).tolist(), strict=True)
        return answer_metrics(right, [each.answers[number] for each, number in chosen])

    def submitted(self, example: Choices, number: int) -> str:
        """The text of the chosen entity."""
        return example.answers[number]


def _choices(name: str, passage: dict[str, Any], query: dict[str, Any], *, is_test: bool) -> Choices:
    text = passage["text"]
    # The last character of an entity belongs to it.
    entities = tuple(dict.fromkeys(text[each["start"] : each["end"] + 1] for each in passage["entities"]))
    right = {answer["text"] for answer in query["answers"]} if not is_test else set(entities)
    accepted = tuple(number for number, entity in enumerate(entities) if entity in right)
    if not accepted or PLACEHOLDER not in query["query"]:
        raise ValueError(f"query {query['idx']} has no {'answer' if not accepted else PLACEHOLDER}")
    read = " ".join(text.split())
    pairs = tuple((read, query["query"].replace(PLACEHOLDER, entity)) for entity in entities)
    if is_test:
        return Choices(str(query["idx"]), pairs, UNLABELLED, answers=entities)
    return Choices(f"{name}-{query['idx']}", pairs, accepted[0], accepted=accepted, answers=entities)
