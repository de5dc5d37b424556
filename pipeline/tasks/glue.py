"""Tasks of GLUE (Wang et al. 2019), whose folders hold train.tsv, dev.tsv and test.tsv. Sizes are those of training and
evaluation.

MNLI is in `classification.py`, SuperGLUE in `superglue.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from cluster.artefacts.errors import MissingInputError
from pipeline.tasks.files.lines import read_lines, require_file, wrong_line
from pipeline.tasks.files.rows import Row, is_dataset, read_split, read_table
from pipeline.tasks.forms import UNLABELLED, ClassificationTaskConfig, Example
from pipeline.tasks.task import EvaluationSet, NamedText, TaskConfig, TaskData

Split = tuple[list[Path], list[Example]]
"""The files of a split, and its examples."""


class BenchmarkConfig(TaskConfig):
    """Settings and constants that the tasks of GLUE and SuperGLUE share."""

    path: Path
    """The unpacked folder."""
    submit: bool = False
    """Whether the test set is also predicted, in the file that the leaderboard takes."""

    benchmark: ClassVar[str]
    """The benchmark and where it is found, for messages about missing files."""
    files: ClassVar[tuple[str, str, str]]
    """The files of training, development and test set, as patterns."""
    folder: ClassVar[str]
    """Name of the folder, of the archive, and of the file to submit."""
    archive: ClassVar[str] = ""
    """Name of the archive, where it is not the folder's."""
    texts: ClassVar[tuple[str, ...]]
    """Columns of the texts, one or two."""
    label: ClassVar[str] = "label"
    """Column of the label."""
    labels: ClassVar[tuple[str, ...]]
    """The labels that may occur, in the order of their numbers."""
    names: ClassVar[tuple[str, ...]] = ()
    """Names of the labels for people, where the files hold only numbers, or true and false."""

    @classmethod
    def origin(cls) -> str:
        """The archive that holds the files, for messages about missing ones."""
        return f"the contents of {cls.archive or cls.folder}.zip of the {cls.benchmark}"

    @classmethod
    def sets(cls) -> tuple[EvaluationSet, ...]:
        """The texts of the development set and, where it is there, of the test set."""
        kind, folder = cls.model_fields["kind"].default, cls.benchmark.partition(" ")[0].lower()
        names = [(f"{folder}/{cls.folder}/{file}",) for file in cls.files[1:]]
        return (EvaluationSet(kind, cls.origin(), cls.read_texts, *names),)

    @classmethod
    def read_texts(cls, path: Path) -> Iterator[NamedText]:
        """The texts of a file, with the names of their examples."""
        raise NotImplementedError

    @classmethod
    def label_number(cls, row: Row, label: Any) -> float:
        """The index of a label, which is one of `labels` or, in JSON and in data sets of the Hub, that index itself.

        Raises:
            ConfigError: it is no label of the task.
        """
        if isinstance(label, int) and 0 <= label < len(cls.labels):
            return int(label)
        if label not in cls.labels:
            hint = "; files of test sets have no labels" if label in (None, -1) else ""
            raise row.error(
                f"the label in `{cls.label}` is {label!r}, not one of {', '.join(cls.labels)}{hint}"
            )
        return cls.labels.index(label)


class GlueConfig(BenchmarkConfig, ClassificationTaskConfig):
    """A task of GLUE."""

    path: Path
    """The unpacked folder, with train.tsv and dev.tsv; or a data set with the splits train and validation, as
    `datasets` saves it or the Hugging Face Hub keeps it."""

    benchmark = "GLUE benchmark (gluebenchmark.com/tasks)"
    files = ("train.tsv", "dev.tsv", "test.tsv")
    texts = ("sentence1", "sentence2")
    labels = ("0", "1")
    header: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of train.tsv and dev.tsv, where their first line does not name them."""
    index: ClassVar[str] = "index"
    """Column of test.tsv with the number that a prediction is submitted under."""
    hub_texts: ClassVar[tuple[str, ...]] = ()
    """Columns of the texts in data sets of the Hub, where the official files have others."""
    groups: ClassVar[tuple[str, ...]] = ("",)
    """Groups of examples, each in files of its own such as dev_GROUP.tsv."""
    submitted_as: ClassVar[Mapping[str, str]] = {}
    """Names of the files to submit, by group, where they are not the folder's."""

    @classmethod
    def read_texts(cls, path: Path) -> Iterator[NamedText]:
        # The first line of test.tsv always names the columns.
        for row in read_table(path, cls.texts, () if path.name == "test.tsv" else cls.header):
            yield from ((row.name, row.values[column]) for column in cls.texts)

    @classmethod
    def examples(cls, path: Path, group: str = "", *, is_test: bool = False) -> Iterator[Example]:
        """Stream the examples of a file: of a test set without labels, named by the numbers that their predictions are
        submitted under.

        Raises:
            ConfigError: a line has other columns than the first, or an unknown label.
        """
        columns = (cls.index, *cls.texts) if is_test else (*cls.texts, cls.label)
        for row in read_table(path, columns, () if is_test else cls.header, exact=True):
            name = row.values[cls.index] if is_test else row.name
            label = UNLABELLED if is_test else cls.label_number(row, row.values[cls.label])
            yield Example(name, *_pair([row.values[column] for column in cls.texts]), label, group)

    def load(self) -> TaskData[Example]:
        """Read `train.tsv` and `dev.tsv`, and `test.tsv` where it is to be predicted."""
        train = self.split("train")
        evaluation = [self.split("dev", group) for group in self.groups]
        test = [self.split("test", group) for group in self.groups if self.submit]
        return TaskData.of_files(
            train[1],
            [example for _, examples in evaluation for example in examples],
            [path for paths, _ in (train, *evaluation, *test) for path in paths],
            () if self.regression else self.names or self.labels,
            [example for _, examples in test for example in examples],
        )

    def split(self, split: str, group: str = "") -> Split:
        """The examples of a split (train, dev or test) and a group; those of a test set have no labels, and are named
        by the numbers that their predictions are submitted under."""
        stem, is_test = "_".join(filter(None, (split, group))), split == "test"
        if is_dataset(self.path):
            return self._hub_split(stem.replace("dev", "validation"), group, is_test=is_test)
        settings = "`path`, or leave `submit` out" if is_test else "`path`"
        path = require_file(self.path / f"{stem}.tsv", self.origin(), settings)
        return [path], [*self.examples(path, group, is_test=is_test)]

    def _hub_split(self, split: str, group: str, *, is_test: bool) -> Split:
        """The examples of a data set's split, whose labels are texts, or numbers of `datasets.ClassLabel`, which has
        the order of our labels."""
        paths, rows = read_split(self.path, split)
        if not paths:
            raise MissingInputError(
                f"The data set {self.path} has no split `{split}`.",
                next_step="save it with all its splits, or name the folder of the official files",
            )
        examples = []
        for number, row in enumerate(rows):
            texts = [row.official_text(column) for column in self.hub_texts or self.texts]
            name = str(row.values.get("idx", number)) if is_test else row.name
            label = UNLABELLED if is_test else self.label_number(row, row.values.get("label"))
            examples.append(Example(name, *_pair(texts), label, group))
        return paths, examples

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """`index` and `prediction` of every test example, in a tab-separated file for each test set
        (gluebenchmark.com)."""
        files: dict[str, str] = {}
        for example, prediction in zip(examples, self.predictions(outputs), strict=True):
            name = f"{self.submitted_as.get(example.group, self.folder)}.tsv"
            line = f"{example.id}\t{self.submitted(prediction)}\n"
            files[name] = files.get(name, "index\tprediction\n") + line
        return {name: lines.encode() for name, lines in files.items()}

    def submitted(self, prediction: Any) -> str:
        """A prediction as the leaderboard takes it: the label as in the official files."""
        return self.labels[int(prediction)]


def _pair(texts: Sequence[str]) -> tuple[str, str | None]:
    return texts[0], texts[1] if len(texts) > 1 else None


class ColaConfig(GlueConfig):
    """The Corpus of Linguistic Acceptability: is the sentence acceptable English? (Warstadt et al. 2019). 8,551 and
    1,043 sentences."""

    kind: Literal["cola"] = "cola"

    folder = "CoLA"
    texts = ("sentence",)
    header = ("source", "label", "original judgment", "sentence")
    names = ("unacceptable", "acceptable")
    metrics = ("matthews", "accuracy")


class Sst2Config(GlueConfig):
    """The Stanford Sentiment Treebank: is the film review phrase positive? (Socher et al. 2013). 67,349 phrases and 872
    sentences."""

    kind: Literal["sst2"] = "sst2"

    folder = "SST-2"
    texts = ("sentence",)
    names = ("negative", "positive")
    metrics = ("accuracy",)


class MrpcConfig(GlueConfig):
    """The Microsoft Research Paraphrase Corpus: do two sentences mean the same? (Dolan and Brockett 2005). 3,668 and
    408 pairs; copies with fewer are also accepted.

    GLUE's download_glue_data.py makes the files from msr_paraphrase_train.txt and dev_ids.tsv; without train.tsv and
    dev.tsv these are read as they are.
    """

    kind: Literal["mrpc"] = "mrpc"

    folder = "MRPC"
    texts = ("#1 String", "#2 String")
    label = "Quality"
    names = ("different", "paraphrase")
    hub_texts = ("sentence1", "sentence2")
    metrics = ("f1", "accuracy")

    def split(self, split: str, group: str = "") -> Split:
        source = self.path / "msr_paraphrase_train.txt"
        if split == "test" or not source.is_file() or (self.path / f"{split}.tsv").is_file():
            return super().split(split, group)
        ids = require_file(self.path / "dev_ids.tsv", f"GLUE's dev_ids.tsv ({self.origin()})", "`path`")
        held_out = set()
        for name, line in read_lines(ids):
            pair = tuple(line.split("\t"))
            if len(pair) != 2:
                raise wrong_line(ids, name, f"{len(pair)} columns, 2 are needed")
            held_out.add(pair)
        chosen = {
            row.name
            for row in read_table(source, ("#1 ID", "#2 ID", self.label), exact=True)
            if ((row.values["#1 ID"], row.values["#2 ID"]) in held_out) == (split == "dev")
        }
        return [source, ids], [each for each in self.examples(source) if each.id in chosen]


class StsbConfig(GlueConfig):
    """The Semantic Textual Similarity Benchmark: how similar are two sentences, from 0 to 5? (Cer et al. 2017). 5,749
    and 1,500 pairs."""

    kind: Literal["stsb"] = "stsb"

    folder = "STS-B"
    label = "score"
    labels = ()
    regression = True
    metrics = ("pearson", "spearman")

    @classmethod
    def label_number(cls, row: Row, label: Any) -> float:
        problem = f"the label in column `{cls.label}` is {label!r}"
        try:
            number = float(label)
        except (TypeError, ValueError):
            raise row.error(f"{problem}, no number") from None
        if not 0 <= number <= 5:
            raise row.error(f"{problem}, not between 0 and 5")
        return number

    def submitted(self, prediction: Any) -> str:
        """The number with three decimals, inside of the bounds that human scores have."""
        return f"{min(max(float(prediction), 0.0), 5.0):.3f}"


_LABEL_AT_END = re.compile(r"\s+[01]$")


class QqpConfig(GlueConfig):
    """Quora Question Pairs: do two questions ask the same? (Quora 2017). 363,846 and 40,430 pairs.

    They are those of QQP-clean.zip; the older QQP.zip has questions with line ends in them, which are refused by file
    and line.
    """

    kind: Literal["qqp"] = "qqp"

    files = ("train.tsv", "dev*.tsv", "test.tsv")
    folder = "QQP"
    archive = "QQP-clean"
    texts = ("question1", "question2")
    label = "is_duplicate"
    names = ("different", "duplicate")
    index = "id"
    metrics = ("f1", "accuracy")

    @classmethod
    def read_texts(cls, path: Path) -> Iterator[NamedText]:
        """Question pairs, of the development set with or without a header; a label may be glued to the last question by
        a space."""
        if path.name == "test.tsv":
            yield from super().read_texts(path)
            return
        for name, line in read_lines(path):
            fields = line.split("\t")
            if fields[0] == "id":
                continue
            if len(fields) < 5:
                raise wrong_line(path, name, f"{len(fields)} columns, at least 5 are needed")
            yield name, fields[3].strip()
            yield name, (_LABEL_AT_END.sub("", fields[4]) if len(fields) == 5 else fields[4]).strip()


_ENTAILMENT = ("entailment", "not_entailment")


class QnliConfig(GlueConfig):
    """Questions of SQuAD, each with a sentence of its passage: does the sentence answer it? (Rajpurkar et al. 2016).
    104,743 and 5,463 pairs (QNLIv2)."""

    kind: Literal["qnli"] = "qnli"

    folder = "QNLI"
    archive = "QNLIv2"
    texts = ("question", "sentence")
    labels = _ENTAILMENT
    metrics = ("accuracy",)


class RteConfig(GlueConfig):
    """Recognizing Textual Entailment: does text two follow from text one? (Dagan et al. 2006). 2,490 and 277 pairs."""

    kind: Literal["rte"] = "rte"

    folder = "RTE"
    labels = _ENTAILMENT
    metrics = ("accuracy",)


class WnliConfig(GlueConfig):
    """Winograd schemas: does text two, with a pronoun resolved, follow from text one? (Levesque et al. 2011). 635 and
    71 pairs.

    The evaluation pairs repeat sentences of the training pairs with the opposite label, so a network that learns the
    training pairs by heart scores below chance.
    """

    kind: Literal["wnli"] = "wnli"

    folder = "WNLI"
    names = ("not_entailment", "entailment")
    metrics = ("accuracy",)
