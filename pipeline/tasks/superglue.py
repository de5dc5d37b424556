"""Tasks of SuperGLUE (Wang et al. 2019b), whose folder holds train.jsonl, val.jsonl and, without labels, test.jsonl.

MultiRC and ReCoRD are in `superglue_passages.py`. Sizes are those of the official release. RTE has 2,490 training and
277 evaluation pairs, the same as in GLUE; the diagnostic sets AX-b and AX-g (1,104 and 356 pairs) are answered by a
network that was trained on it (section 3.3).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from pipeline.tasks.files.lines import json_lines, read_objects, require_file, text_of, wrong_line
from pipeline.tasks.forms import (
    UNLABELLED,
    Choices,
    ChoicesTaskConfig,
    ClassificationTaskConfig,
    Example,
)
from pipeline.tasks.task import (
    EvaluationSet,
    Files,
    NamedText,
    TaskConfig,
    TaskData,
    file_input,
    texts_of,
)

TEST_FILE = "test.jsonl"
"""Has no labels, but the numbers of its lines."""


class SuperGlueFiles:
    """The files of one task."""

    def __init__(self, folder: str, read: Callable[[Path], Iterable[Any]]) -> None:
        """`read` streams the examples of a file; they have an `id` and `texts`."""
        self.folder = folder
        self.read = read
        self.origin = (
            f"the contents of {folder}.zip of the SuperGLUE benchmark (super.gluebenchmark.com/tasks)"
        )

    def evaluation_set(self, name: str) -> EvaluationSet:
        """The texts of val.jsonl and, where it is there, of test.jsonl."""
        read, folder = texts_of(self.read), f"superglue/{self.folder}"
        files = Files((f"{folder}/val.jsonl",), read), Files((f"{folder}/{TEST_FILE}",), read, optional=True)
        return EvaluationSet(name, files, self.origin)


class SuperGlueTaskConfig(TaskConfig):
    """Settings that the tasks of SuperGLUE share."""

    path: Path
    """The unpacked folder, with train.jsonl and val.jsonl."""
    submit: bool = False
    """Whether test.jsonl is also predicted, in the file that the leaderboard takes."""

    files: ClassVar[SuperGlueFiles]
    labels: ClassVar[tuple[str, ...]] = ()

    def load(self) -> TaskData[Any]:
        """Read `train.jsonl` and `val.jsonl`, and `test.jsonl` where it is to be predicted."""
        names = ("train.jsonl", "val.jsonl", *((TEST_FILE,) if self.submit else ()))
        paths = [self.path / name for name in names]
        train, evaluation, *test = (
            [*self.files.read(require_file(path, self.files.origin, "`path`"))] for path in paths
        )
        return TaskData.of_files(train, evaluation, paths, self.labels, *test)

    def submission(
        self, examples: Sequence[Any], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """`idx` and `label` of every test example, as super.gluebenchmark.com takes them (its FAQ), in a file for each
        test set."""
        files: dict[str, list[dict[str, Any]]] = {}
        for example, number in zip(examples, self.predictions(outputs).tolist(), strict=True):
            rows = files.setdefault(f"{example.group or self.files.folder}.jsonl", [])
            rows.append({"idx": int(example.id), "label": self.submitted(example, number)})
        return {name: json_lines(rows) for name, rows in files.items()}

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """int64 [examples]: the index of the predicted label or choice."""
        return outputs.argmax(-1)

    def submitted(self, example: Any, number: int) -> Any:
        """A prediction as the leaderboard takes it."""
        return number


class SuperGlueLabelsConfig(SuperGlueTaskConfig, ClassificationTaskConfig):
    """Settings of the tasks whose leaderboard takes one label for each line of the test set."""

    submitted_labels: ClassVar[tuple[str, ...]]
    """Labels as the leaderboard takes them, in the order of their numbers."""

    def submitted(self, example: Example, number: int) -> str:
        return self.submitted_labels[number]


def id_in(path: Path, name: str, found: dict[str, Any]) -> str:
    """The id of a line; in a test file its number, which its prediction is submitted with.

    Raises:
        ConfigError: a line of a test file has no number.
    """
    return number_in(path, name, found) if path.name == TEST_FILE else name


def number_in(path: Path, name: str, found: dict[str, Any]) -> str:
    """The number of a line.

    Raises:
        ConfigError: it has none.
    """
    if not isinstance(found.get("idx"), int):
        raise wrong_line(path, name, f"`idx` is {found.get('idx')!r}, not a number")
    return str(found["idx"])


def pair_reader(first: str, second: str, labels: tuple[str, ...]) -> Callable[[Path], Iterator[Example]]:
    """A function that streams the pairs of a file, which raises ConfigError where a line is not as the release has it.

    Args:
        first, second: the fields of both texts.
        labels: in the order of their numbers.
    """

    def read(path: Path) -> Iterator[Example]:
        for name, found in read_objects(path):
            one, two = (text_of(path, name, found, key) for key in (first, second))
            yield Example(id_in(path, name, found), one, two, label_in(path, name, found, labels))

    return read


def label_in(path: Path, name: str, found: dict[str, Any], labels: tuple[str, ...]) -> int:
    """The index of the label of a line: a text, or true, false, 0 or 1. UNLABELLED for every line of a test file.

    Raises:
        ConfigError: there is no label, as in a test file, or an unknown one.
    """
    if path.name == TEST_FILE:
        return UNLABELLED
    label = found.get("label")
    if isinstance(label, bool | int) and len(labels) == 2 and int(label) in (0, 1):
        return int(label)
    if label not in labels:
        known = ", ".join(labels)
        hint = "; files of test sets have no labels" if label is None else ""
        raise wrong_line(path, name, f"the label is {label!r}, not one of {known}{hint}")
    return labels.index(label)


class BoolqConfig(SuperGlueLabelsConfig):
    """Boolean Questions: is the answer to the question, by the passage, yes? (Clark et al. 2019).

    9,427 training and 3,270 evaluation questions.
    """

    kind: Literal["boolq"] = "boolq"

    labels = ("no", "yes")
    files = SuperGlueFiles("BoolQ", pair_reader("passage", "question", labels))
    submitted_labels = ("false", "true")
    metrics = ("accuracy",)
    evaluation_sets = (files.evaluation_set("boolq"),)


class CbConfig(SuperGlueLabelsConfig):
    """CommitmentBank: is the speaker committed to the clause? (de Marneffe et al. 2019).

    250 training and 56 evaluation pairs. The leaderboard takes the mean of both metrics.
    """

    kind: Literal["cb"] = "cb"

    labels = submitted_labels = ("entailment", "contradiction", "neutral")
    files = SuperGlueFiles("CB", pair_reader("premise", "hypothesis", labels))
    metrics = ("macro_f1", "accuracy")
    evaluation_sets = (files.evaluation_set("cb"),)


_ASKED = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def _read_copa(path: Path) -> Iterator[Choices]:
    """Stream the questions of a file: the premise with question and alternative."""
    for name, found in read_objects(path):
        premise, first, second, asked = (
            text_of(path, name, found, key) for key in ("premise", "choice1", "choice2", "question")
        )
        if asked not in _ASKED:
            raise wrong_line(path, name, f"`question` is {asked!r}, not one of {', '.join(_ASKED)}")
        label = label_in(path, name, found, ("0", "1"))
        pairs = tuple((premise, f"{_ASKED[asked]} {choice}") for choice in (first, second))
        yield Choices(id_in(path, name, found), pairs, label)


class CopaConfig(SuperGlueTaskConfig, ChoicesTaskConfig):
    """Choice of Plausible Alternatives: which one is the cause, or the effect? (Roemmele et al. 2011).

    400 training and 100 evaluation questions.
    """

    kind: Literal["copa"] = "copa"

    files = SuperGlueFiles("COPA", _read_copa)
    metrics = ("accuracy",)
    evaluation_sets = (files.evaluation_set("copa"),)


_WIC_LABELS = ("different", "same")
_JOINED = re.compile(r"(?:Word: (.*?)\.\s*)?Sentence 1: (.*?)\s*Sentence 2: (.*)", re.DOTALL)


def _wic_lines(path: Path) -> Iterator[tuple[str, dict[str, Any], tuple[str, str, str]]]:
    """(name, object, (word, both sentences)) of every line: as SuperGLUE has them, or joined in one field `text`."""
    for name, found in read_objects(path):
        if "text" not in found:
            first, second = (text_of(path, name, found, key) for key in ("sentence1", "sentence2"))
            yield name, found, (str(found.get("word", "")), first, second)
        elif match := _JOINED.search(text_of(path, name, found, "text")):
            yield name, found, (match[1] or "", match[2], match[3])
        else:
            raise wrong_line(path, name, "there are no two sentences in `text`")


def _read_wic(path: Path) -> Iterator[Example]:
    for name, found, (word, first, second) in _wic_lines(path):
        label = label_in(path, name, found, _WIC_LABELS)
        yield Example(id_in(path, name, found), f"{word}: {first}", second, label)


def _read_wic_sentences(path: Path) -> Iterator[NamedText]:
    """Both sentences of every line, which need no label."""
    for name, _, (_, *sentences) in _wic_lines(path):
        yield from ((name, text) for text in sentences)


class WicConfig(SuperGlueLabelsConfig):
    """Words in Context: does the word mean the same in both sentences? (Pilehvar and Camacho-Collados 2019).

    5,428 training and 638 evaluation pairs. The word precedes the first sentence, so that any network can read
    which one is meant.
    """

    kind: Literal["wic"] = "wic"

    labels = _WIC_LABELS
    files = SuperGlueFiles("WiC", _read_wic)
    submitted_labels = ("false", "true")
    metrics = ("accuracy",)
    evaluation_sets = (
        EvaluationSet(
            "wic",
            (
                Files(("wic/*.jsonl", "WiC/*.jsonl", "superglue/WiC/val.jsonl"), _read_wic_sentences),
                Files((f"superglue/WiC/{TEST_FILE}",), _read_wic_sentences, optional=True),
            ),
            "WiC of the SuperGLUE benchmark",
        ),
    )


_RTE_DIAGNOSTICS = {"AX-b": ("sentence1", "sentence2"), "AX-g": ("premise", "hypothesis")}
"""The columns of the texts, by diagnostic set."""


class SuperglueRteConfig(SuperGlueLabelsConfig):
    """Recognizing Textual Entailment, as JSON lines."""

    kind: Literal["superglue_rte"] = "superglue_rte"
    ax_b: Path | None = None
    """AX-b.jsonl, linguistic diagnostics, to be predicted for `submit`."""
    ax_g: Path | None = None
    """AX-g.jsonl, gender diagnostics, to be predicted for `submit`."""

    labels = submitted_labels = ("entailment", "not_entailment")
    files = SuperGlueFiles("RTE", pair_reader("premise", "hypothesis", labels))
    metrics = ("accuracy",)
    evaluation_sets = (files.evaluation_set("superglue_rte"),)

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
            for line, found in read_objects(path):
                first, second = (text_of(path, line, found, key) for key in _RTE_DIAGNOSTICS[name])
                examples.append(Example(number_in(path, line, found), first, second, UNLABELLED, name))
            data = dataclasses.replace(
                data, test=(*data.test, *examples), inputs=(*data.inputs, file_input(path))
            )
        return data
