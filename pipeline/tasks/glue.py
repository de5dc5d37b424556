"""Tasks of GLUE (Wang et al. 2019), whose folders hold train.tsv, dev.tsv and test.tsv; MNLI is a file of its own.

Each is a class of a few constants. Sizes are those of the official release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from cluster.artefacts.errors import MissingInputError
from pipeline.tasks.files.lines import read_lines, require_file, wrong_line
from pipeline.tasks.files.rows import is_dataset, read_split
from pipeline.tasks.files.tables import GlueFiles, read_columns
from pipeline.tasks.forms import UNLABELLED, ClassificationTaskConfig, Example
from pipeline.tasks.task import EvaluationSet, Files, NamedText, TaskData

Split = tuple[list[Path], list[Example]]
"""The files of a split, and its examples."""


class GlueTaskConfig(ClassificationTaskConfig):
    """Settings that the tasks of GLUE share."""

    path: Path
    """The unpacked folder, with train.tsv and dev.tsv; or a data set with the splits train and validation, as
    `datasets` saves it or the Hugging Face Hub keeps it."""
    submit: bool = False
    """Whether test.tsv is also predicted, in the file that the leaderboard takes."""

    files: ClassVar[GlueFiles]
    label_names: ClassVar[tuple[str, ...]] = ()
    """Names of the labels for people, where the files hold numbers only."""
    hub_texts: ClassVar[tuple[str, ...]] = ()
    """Columns of the texts in data sets of the Hub, where the official files have others."""
    evaluations: ClassVar[tuple[tuple[str, str], ...]] = (("", "dev"),)
    """The files to score on: a group of examples and the beginning of a file's name each."""
    leaderboard: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    """The test sets: a group of examples, the beginning of a file's name, and the file to submit each; where it is
    empty, test.tsv alone, submitted as `FOLDER.tsv`."""

    @property
    def test_sets(self) -> tuple[tuple[str, str, str], ...]:
        """The test sets, as in `leaderboard`."""
        return self.leaderboard or (("", "test", f"{self.files.folder}.tsv"),)

    def load(self) -> TaskData[Example]:
        """Read `train.tsv` and `dev.tsv`, and `test.tsv` where it is to be predicted."""
        train = self.split("train")
        evaluation = [self.split(stem, group) for group, stem in self.evaluations]
        test = [self.test_split(stem, group) for group, stem, _ in self.test_sets] if self.submit else []
        return TaskData.of_files(
            train[1],
            [example for _, examples in evaluation for example in examples],
            [path for paths, _ in (train, *evaluation, *test) for path in paths],
            () if self.regression else self.label_names or self.files.labels,
            [example for _, examples in test for example in examples],
        )

    def split(self, stem: str, group: str = "") -> Split:
        """The labelled examples of the file `STEM.tsv`, or of the split of a data set."""
        if is_dataset(self.path):
            return self._hub_split(stem, group, is_test=False)
        path = require_file(self.path / f"{stem}.tsv", self.files.origin, "`path`")
        return [path], [
            _example(name, texts, label, group) for name, texts, label in self.files.read_labelled(path)
        ]

    def test_split(self, stem: str, group: str = "") -> Split:
        """The examples of a test set, named by the numbers that their predictions are submitted under."""
        if is_dataset(self.path):
            return self._hub_split(stem, group, is_test=True)
        path = require_file(self.path / f"{stem}.tsv", self.files.origin, "`path`, or leave `submit` out")
        return [path], [
            _example(index, texts, UNLABELLED, group) for index, texts in self.files.read_unlabelled(path)
        ]

    def _hub_split(self, stem: str, group: str, *, is_test: bool) -> Split:
        """The examples of a data set's split, whose labels are numbers of `datasets.ClassLabel`, which has the order of
        our labels, or texts."""
        split, known = stem.replace("dev", "validation"), self.files.labels
        paths, rows = read_split(self.path, split)
        if not paths:
            raise MissingInputError(
                f"The data set {self.path} has no split `{split}`.",
                next_step="save it with all its splits, or name the folder of the official files",
            )
        examples = []
        for number, row in enumerate(rows):
            texts = [row.official_text(column) for column in self.hub_texts or self.files.texts]
            name, label = row.name, row.values.get("label")
            if is_test:
                name, label = str(row.values.get("idx", number)), UNLABELLED
            elif not isinstance(label, int) or self.files.bounds is not None:
                label = self.files.label_number(row.path, row.name, str(label))
            elif not 0 <= label < len(known):
                problem = f"the label is {label}, not from 0 to {len(known) - 1}; test sets have no labels"
                raise row.error(problem)
            examples.append(_example(name, texts, label, group))
        return paths, examples

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """`index` and `prediction` of every test example, in a tab-separated file for each test set."""
        predicted = zip(examples, map(self.submitted, self.predictions(outputs)), strict=True)
        rows = [(example.group, (example.id, value)) for example, value in predicted]
        return {
            file: submission_file(row for found, row in rows if found == group)
            for group, _, file in self.test_sets
        }

    def submitted(self, prediction: Any) -> str:
        """A prediction as the leaderboard takes it: the label as in the official files."""
        return self.files.labels[int(prediction)]


def submission_file(rows: Iterable[tuple[str, str]]) -> bytes:
    """Tab-separated `index` and `prediction`, as gluebenchmark.com takes them."""
    return "".join(f"{index}\t{value}\n" for index, value in (("index", "prediction"), *rows)).encode()


def _example(name: str, texts: Sequence[str], label: float, group: str) -> Example:
    return Example(name, texts[0], texts[1] if len(texts) > 1 else None, label, group)


_SENTENCES = ("sentence1", "sentence2")


class ColaConfig(GlueTaskConfig):
    """The Corpus of Linguistic Acceptability: is the sentence acceptable English? (Warstadt et al. 2019).

    8,551 training and 1,043 evaluation sentences.
    """

    kind: Literal["cola"] = "cola"

    files = GlueFiles(
        folder="CoLA",
        texts=("sentence",),
        label="label",
        labels=("0", "1"),
        header=("source", "label", "original judgment", "sentence"),
    )
    label_names = ("unacceptable", "acceptable")
    metrics = ("matthews", "accuracy")
    evaluation_sets = (files.evaluation_set("cola"),)


class Sst2Config(GlueTaskConfig):
    """The Stanford Sentiment Treebank: is the film review phrase positive? (Socher et al. 2013).

    67,349 training phrases and 872 evaluation sentences.
    """

    kind: Literal["sst2"] = "sst2"

    files = GlueFiles(folder="SST-2", texts=("sentence",), label="label", labels=("0", "1"))
    label_names = ("negative", "positive")
    metrics = ("accuracy",)
    evaluation_sets = (files.evaluation_set("sst2"),)


class StsbConfig(GlueTaskConfig):
    """The Semantic Textual Similarity Benchmark: how similar are two sentences, from 0 to 5? (Cer et al. 2017).

    5,749 training and 1,500 evaluation pairs.
    """

    kind: Literal["stsb"] = "stsb"

    files = GlueFiles(folder="STS-B", texts=_SENTENCES, label="score", bounds=(0.0, 5.0))
    regression = True
    metrics = ("pearson", "spearman")
    evaluation_sets = (files.evaluation_set("stsb"),)

    def submitted(self, prediction: Any) -> str:
        """The number with three decimals, inside of the bounds that human scores have."""
        return f"{min(max(float(prediction), 0.0), 5.0):.3f}"


class QnliConfig(GlueTaskConfig):
    """Questions of SQuAD, each with a sentence of its passage: does the sentence answer it? (Rajpurkar et al. 2016).

    104,743 training and 5,463 evaluation pairs (QNLIv2).
    """

    kind: Literal["qnli"] = "qnli"

    files = GlueFiles(
        folder="QNLI",
        texts=("question", "sentence"),
        label="label",
        labels=("entailment", "not_entailment"),
        archive="QNLIv2",
    )
    metrics = ("accuracy",)
    evaluation_sets = (files.evaluation_set("qnli"),)


class RteConfig(GlueTaskConfig):
    """Recognizing Textual Entailment: does text two follow from text one? (Dagan et al. 2006).

    2,490 training and 277 evaluation pairs.
    """

    kind: Literal["rte"] = "rte"

    files = GlueFiles(folder="RTE", texts=_SENTENCES, label="label", labels=("entailment", "not_entailment"))
    metrics = ("accuracy",)
    evaluation_sets = (files.evaluation_set("rte"),)


class WnliConfig(GlueTaskConfig):
    """Winograd schemas: does text two, with a pronoun resolved, follow from text one? (Levesque et al. 2011).

    635 training and 71 evaluation pairs. The evaluation pairs repeat sentences of the training pairs with the opposite
    label, so a network that learns the training pairs by heart scores below chance.
    """

    kind: Literal["wnli"] = "wnli"

    files = GlueFiles(folder="WNLI", texts=_SENTENCES, label="label", labels=("0", "1"))
    label_names = ("not_entailment", "entailment")
    metrics = ("accuracy",)
    evaluation_sets = (files.evaluation_set("wnli"),)


MSR_TRAIN, DEV_IDS = "msr_paraphrase_train.txt", "dev_ids.tsv"


class MrpcConfig(GlueTaskConfig):
    """The Microsoft Research Paraphrase Corpus: do two sentences mean the same? (Dolan and Brockett 2005).

    3,668 training and 408 evaluation pairs; copies with fewer are also accepted. GLUE's download_glue_data.py makes the
    files from msr_paraphrase_train.txt, which can be read as it is.
    """

    kind: Literal["mrpc"] = "mrpc"
    path: Path
    """The folder `MRPC`, with train.tsv and dev.tsv, or with msr_paraphrase_train.txt and GLUE's dev_ids.tsv; or a data
    set with the splits train and validation, as `datasets` saves it or the Hugging Face Hub keeps it."""

    files = GlueFiles(folder="MRPC", texts=("#1 String", "#2 String"), label="Quality", labels=("0", "1"))
    label_names = ("different", "paraphrase")
    hub_texts = ("sentence1", "sentence2")
    metrics = ("f1", "accuracy")
    evaluation_sets = (files.evaluation_set("mrpc"),)

    def split(self, stem: str, group: str = "") -> Split:
        """The examples of `STEM.tsv`; without it, the pairs of msr_paraphrase_train.txt that are, or are not, in
        dev_ids.tsv."""
        if (self.path / f"{stem}.tsv").is_file() or not (self.path / MSR_TRAIN).is_file():
            return super().split(stem, group)
        ids = require_file(self.path / DEV_IDS, f"GLUE's {DEV_IDS} ({self.files.origin})", "`path`")
        held_out = set()
        for name, line in read_lines(ids):
            pair = tuple(line.split("\t"))
            if len(pair) != 2:
                raise wrong_line(ids, name, f"{len(pair)} columns, 2 are needed")
            held_out.add(pair)
        columns = (*self.files.texts, "#1 ID", "#2 ID", self.files.label)
        path = self.path / MSR_TRAIN
        examples = [
            Example(name, first, second, self.files.label_number(path, name, label), group)
            for name, (first, second, *pair, label) in read_columns(path, columns, exact=True)
            if (tuple(pair) in held_out) == (stem == "dev")
        ]
        return [path, ids], examples


_LABEL_AT_END = re.compile(r"\s+[01]$")


def _read_qqp_texts(path: Path) -> Iterator[NamedText]:
    """Question pairs, with or without a header; a label may be glued to the last question by a space."""
    for name, line in read_lines(path):
        fields = line.split("\t")
        if fields[0] == "id":
            continue
        if len(fields) < 5:
            raise wrong_line(path, name, f"{len(fields)} columns, at least 5 are needed")
        yield name, fields[3].strip()
        yield name, (_LABEL_AT_END.sub("", fields[4]) if len(fields) == 5 else fields[4]).strip()


class QqpConfig(GlueTaskConfig):
    """Quora Question Pairs: do two questions ask the same? (Quora 2017).

    363,846 training and 40,430 evaluation pairs, QQP-clean.zip; the older QQP.zip has questions with line ends in them,
    which are refused by file and line.
    """

    kind: Literal["qqp"] = "qqp"

    files = GlueFiles(
        folder="QQP",
        texts=("question1", "question2"),
        label="is_duplicate",
        labels=("0", "1"),
        index="id",
        archive="QQP-clean",
    )
    label_names = ("different", "duplicate")
    metrics = ("f1", "accuracy")
    evaluation_sets = (
        EvaluationSet(
            "qqp",
            (
                Files(("glue/QQP/dev*.tsv",), _read_qqp_texts),
                Files(("glue/QQP/test.tsv",), files.read_texts, optional=True),
            ),
            files.origin,
        ),
    )
