"""Tasks of SuperGLUE (Wang et al. 2019b), whose folder holds train.jsonl, val.jsonl and, without labels, test.jsonl.

Sizes are those of the official release.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from pipeline.tasks.task import (
    EvaluationSet,
    NamedText,
    TaskConfig,
    TaskData,
    TaskRow,
    file_input,
    texts_of,
)

TEST_FILE = "test.jsonl"
"""Has no labels, but the numbers of its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperGlueRow(TaskRow):
    """A task of SuperGLUE."""

    folder: str
    read: Callable[[Path], Iterable[Any]]
    """Streams the examples of a file; they have an `id` and `texts`."""
    labels: tuple[str, ...] = ()
    """Names of the labels, in the order of their numbers."""
    submitted: tuple[str, ...] = ()
    """Labels as the leaderboard takes them, where not by these names."""

    @property
    def origin(self) -> str:
        """The archive that holds the files, for messages about missing ones."""
        return f"the contents of {self.folder}.zip of the SuperGLUE benchmark (super.gluebenchmark.com/tasks)"

    def sets(self, kind: str) -> tuple[EvaluationSet, ...]:
        """The texts of val.jsonl and, where it is there, of test.jsonl."""
        names = [(f"superglue/{self.folder}/{name}",) for name in ("val.jsonl", TEST_FILE)]
        return self.evaluation_sets or (EvaluationSet(kind, self.origin, texts_of(self.read), *names),)


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


def label_in(row: Row, found: Mapping[str, Any], labels: tuple[str, ...]) -> int:
    """The index of the label of an object in a line: a text, or true, false, 0 or 1. UNLABELLED for every line of a
    test file.

    Raises:
        ConfigError: there is no label, as in a test file, or an unknown one.
    """
    if row.path.name == TEST_FILE:
        return UNLABELLED
    label = found.get("label")
    if isinstance(label, bool | int) and len(labels) == 2 and int(label) in (0, 1):
        return int(label)
    if label not in labels:
        known = ", ".join(labels)
        hint = "; files of test sets have no labels" if label is None else ""
        raise row.error(f"the label is {label!r}, not one of {known}{hint}")
    return labels.index(label)


def _pairs(folder: str, first: str, second: str, labels: tuple[str, ...], **constants: Any) -> SuperGlueRow:
    """A task on pairs of texts, which are in the fields `first` and `second`."""

    def read(path: Path) -> Iterator[Example]:
        for row in read_objects(path):
            texts = row.official_text(first), row.official_text(second)
            yield Example(id_in(row), *texts, label_in(row, row.values, labels))

    return SuperGlueRow(folder=folder, read=read, labels=labels, **constants)


_WIC_LABELS = ("different", "same")
_JOINED = re.compile(r"(?:Word: (.*?)\.\s*)?Sentence 1: (.*?)\s*Sentence 2: (.*)", re.DOTALL)


def _wic_lines(path: Path) -> Iterator[tuple[Row, tuple[str, str, str]]]:
    """(row, (word, both sentences)) of every line: as SuperGLUE has them, or joined in one field `text`."""
    for row in read_objects(path):
        if "text" not in row.values:
            first, second = map(row.official_text, ("sentence1", "sentence2"))
            yield row, (str(row.values.get("word", "")), first, second)
        elif match := _JOINED.search(row.official_text("text")):
            yield row, (match[1] or "", match[2], match[3])
        else:
            raise row.error("there are no two sentences in `text`")


def _read_wic(path: Path) -> Iterator[Example]:
    for row, (word, first, second) in _wic_lines(path):
        label = label_in(row, row.values, _WIC_LABELS)
        yield Example(id_in(row), f"{word}: {first}", second, label)


def _read_wic_sentences(path: Path) -> Iterator[NamedText]:
    """Both sentences of every line, which need no label."""
    for row, (_, *sentences) in _wic_lines(path):
        yield from ((row.name, text) for text in sentences)


_ASKED = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def _read_copa(path: Path) -> Iterator[Choices]:
    """Stream the questions of a file: the premise with question and alternative."""
    for row in read_objects(path):
        premise, first, second, asked = map(row.official_text, ("premise", "choice1", "choice2", "question"))
        if asked not in _ASKED:
            raise row.error(f"`question` is {asked!r}, not one of {', '.join(_ASKED)}")
        pairs = tuple((premise, f"{_ASKED[asked]} {choice}") for choice in (first, second))
        yield Choices(id_in(row), pairs, label_in(row, row.values, ("0", "1")))


_MULTIRC_LABELS = ("wrong", "right")
PLACEHOLDER = "@placeholder"


def _read_multirc(path: Path) -> Iterator[Example]:
    """Stream the answers of a file, each with its paragraph and question; the group is the question."""
    for row in read_objects(path):
        try:
            passage = row.values["passage"]
            for number, question in enumerate(passage["questions"]):
                for answer in question["answers"]:
                    label = label_in(row, answer, _MULTIRC_LABELS)
                    asked = f"{question['question']} {answer['text']}"
                    group = f"{row.name}-{number}"
                    if label == UNLABELLED:
                        group = f"{row.values['idx']}-{question['idx']}"
                    yield Example(f"{group}-{answer['idx']}", passage["text"], asked, label, group)
        except (KeyError, TypeError) as error:
            raise row.error(f"no paragraph as MultiRC has it: {error!r}") from None


def _read_record(path: Path) -> Iterator[Choices]:
    """Stream the queries of a file: the passage with the query for each entity in its place."""
    for row in read_objects(path):
        try:
            passage, is_test = row.values["passage"], path.name == TEST_FILE
            yield from (_choices(row.name, passage, query, is_test=is_test) for query in row.values["qas"])
        except (KeyError, TypeError, ValueError) as error:
            raise row.error(f"no passage as ReCoRD has it: {error!r}") from None


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


_TRUTH = ("false", "true")
PAIRS: Mapping[str, SuperGlueRow] = {
    "boolq": _pairs("BoolQ", "passage", "question", ("no", "yes"), submitted=_TRUTH, metrics=("accuracy",)),
    "cb": _pairs(
        "CB",
        "premise",
        "hypothesis",
        ("entailment", "contradiction", "neutral"),
        metrics=("macro_f1", "accuracy"),
    ),
}
"""Tasks on pairs of texts, by kind; a further one is a line here."""
SUPERGLUE: Mapping[str, SuperGlueRow] = {
    **PAIRS,
    "superglue_rte": _pairs(
        "RTE", "premise", "hypothesis", ("entailment", "not_entailment"), metrics=("accuracy",)
    ),
    "wic": SuperGlueRow(
        folder="WiC",
        read=_read_wic,
        labels=_WIC_LABELS,
        submitted=_TRUTH,
        metrics=("accuracy",),
        evaluation_sets=(
            EvaluationSet(
                "wic",
                "WiC of the SuperGLUE benchmark",
                _read_wic_sentences,
                (("wic/*.jsonl", "WiC/*.jsonl", "superglue/WiC/val.jsonl"),),
                (f"superglue/WiC/{TEST_FILE}",),
            ),
        ),
    ),
    "copa": SuperGlueRow(folder="COPA", read=_read_copa, metrics=("accuracy",)),
    "multirc": SuperGlueRow(
        folder="MultiRC",
        read=_read_multirc,
        labels=_MULTIRC_LABELS,
        metrics=("f1_answers", "exact_match"),
    ),
    "record": SuperGlueRow(folder="ReCoRD", read=_read_record, metrics=("f1", "exact_match")),
}
"""Every task, by kind."""


class SuperGlueConfig(TaskConfig):
    """Settings that the tasks of SuperGLUE share."""

    path: Path
    """The unpacked folder, with train.jsonl and val.jsonl."""
    submit: bool = False
    """Whether test.jsonl is also predicted, in the file that the leaderboard takes."""

    rows = SUPERGLUE

    def load(self) -> TaskData[Any]:
        """Read `train.jsonl` and `val.jsonl`, and `test.jsonl` where it is to be predicted."""
        row = self.row
        names = ("train.jsonl", "val.jsonl", *((TEST_FILE,) if self.submit else ()))
        paths = [self.path / name for name in names]
        train, evaluation, *test = ([*row.read(require_file(path, row.origin, "`path`"))] for path in paths)
        return TaskData.of_files(train, evaluation, paths, row.labels, *test)

    def submission(
        self, examples: Sequence[Any], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """`idx` and `label` of every test example, as super.gluebenchmark.com takes them (its FAQ), in a file for each
        test set."""
        files: dict[str, list[dict[str, Any]]] = {}
        for example, number in zip(examples, outputs.argmax(-1).tolist(), strict=True):
            rows = files.setdefault(f"{example.group or self.row.folder}.jsonl", [])
            rows.append({"idx": int(example.id), "label": self.submitted(example, number)})
        return {name: json_lines(rows) for name, rows in files.items()}

    def submitted(self, example: Any, number: int) -> Any:
        """The predicted label or choice, from its index, as the leaderboard takes it."""
        names = self.row.submitted or self.row.labels
        return names[number] if names else number


class SuperGluePairsConfig(SuperGlueConfig, ClassificationTaskConfig):
    """A task of SuperGLUE on pairs of texts with a label.

    - boolq, Boolean Questions: is the answer to the question, by the passage, yes? (Clark et al. 2019). 9,427 training
      and 3,270 evaluation questions.
    - cb, CommitmentBank: is the speaker committed to the clause? (de Marneffe et al. 2019). 250 training and 56
      evaluation pairs. The leaderboard takes the mean of both metrics.
    """

    kind: Literal[*PAIRS]  # pyright: ignore[reportInvalidTypeForm]


class WicConfig(SuperGluePairsConfig):
    """Words in Context: does the word mean the same in both sentences? (Pilehvar and Camacho-Collados 2019).

    5,428 training and 638 evaluation pairs. The word precedes the first sentence, so that any network can read which
    one is meant.
    """

    kind: Literal["wic"] = "wic"


_RTE_DIAGNOSTICS = {"AX-b": ("sentence1", "sentence2"), "AX-g": ("premise", "hypothesis")}
"""The columns of the texts, by diagnostic set."""


class SuperglueRteConfig(SuperGluePairsConfig):
    """Recognizing Textual Entailment, as JSON lines: 2,490 training and 277 evaluation pairs, the same as in GLUE.

    A network that was trained on it also answers the diagnostic sets AX-b and AX-g (1,104 and 356 pairs; section 3.3).
    """

    kind: Literal["superglue_rte"] = "superglue_rte"
    ax_b: Path | None = None
    """AX-b.jsonl, linguistic diagnostics, to be predicted for `submit`."""
    ax_g: Path | None = None
    """AX-g.jsonl, gender diagnostics, to be predicted for `submit`."""

    def load(self) -> TaskData[Example]:
        """Read the files of RTE, and the diagnostic sets that are named.

        Raises:
            MissingInputError, ConfigError: as for every task of SuperGLUE.
        """
        data = super().load()
        for setting, path in (("ax_b", self.ax_b), ("ax_g", self.ax_g)) if self.submit else ():
            if path is None:
                continue
            name = setting.replace("_", "-").replace("ax", "AX")
            require_file(path, f"{name}.zip of the SuperGLUE benchmark", f"`{setting}`")
            examples = []
            for row in read_objects(path):
                first, second = map(row.official_text, _RTE_DIAGNOSTICS[name])
                examples.append(Example(number_in(row), first, second, UNLABELLED, name))
            data = dataclasses.replace(
                data, test=(*data.test, *examples), inputs=(*data.inputs, file_input(path))
            )
        return data


class MultircConfig(SuperGluePairsConfig):
    """Multi-Sentence Reading Comprehension: is the answer right, by the paragraph? Questions have several right answers
    (Khashabi et al. 2018).

    5,100 training and 953 evaluation questions, with 27,243 and 4,848 answers.
    """

    kind: Literal["multirc"] = "multirc"

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


class CopaConfig(SuperGlueConfig, ChoicesTaskConfig):
    """Choice of Plausible Alternatives: which one is the cause, or the effect? (Roemmele et al. 2011).

    400 training and 100 evaluation questions.
    """

    kind: Literal["copa"] = "copa"


class RecordConfig(SuperGlueConfig, ChoicesTaskConfig):
    """Reading Comprehension with Commonsense Reasoning, as a choice among the passage's entities: which one is left out
    of the query? (Zhang et al. 2018).

    100,730 training and 10,000 evaluation queries.
    """

    kind: Literal["record"] = "record"

    def measure(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, float]:
        """Overlap in words, and equality, with the nearest answer, as SQuAD 1.1 measures them."""
        from pipeline.tasks.metrics.squad import answer_metrics

        right = [[each.answers[number] for number in each.accepted] for each in examples]
        chosen = zip(examples, self.predictions(outputs).tolist(), strict=True)
        return answer_metrics(right, [each.answers[number] for each, number in chosen])

    def submitted(self, example: Choices, number: int) -> str:
        """The text of the chosen entity."""
        return example.answers[number]
