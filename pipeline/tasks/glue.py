"""Tasks of GLUE (Wang et al. 2019), whose folders hold train.tsv, dev.tsv and test.tsv: a table, a row for each.

MNLI is in `classification.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cluster.artefacts.errors import MissingInputError
from pipeline.tasks.files.lines import read_lines, require_file, wrong_line
from pipeline.tasks.files.rows import Row, is_dataset, read_split, read_table
from pipeline.tasks.forms import UNLABELLED, ClassificationTaskConfig, Example
from pipeline.tasks.task import EvaluationSet, NamedText, TaskData, TaskRow

Split = tuple[list[Path], list[Example]]
"""The files of a split, and its examples."""


def glue_archive(name: str) -> str:
    """An archive of the release, for messages about missing files."""
    return f"the contents of {name}.zip of the GLUE benchmark (gluebenchmark.com/tasks)"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueRow(TaskRow):
    """A task of GLUE: how its files are read, and what the leaderboard takes."""

    folder: str
    """In the folder `glue` of evaluation sets."""
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    """Columns of the texts, one or two."""
    label: str = "label"
    """Column of the label."""
    labels: tuple[str, ...] = ("0", "1")
    """The label texts that may occur, in the order of their numbers."""
    names: tuple[str, ...] = ()
    """Names of the labels for people, where the files hold numbers only."""
    bounds: tuple[float, float] | None = None
    """The smallest and the largest number that a label may be, where the label is a number."""
    header: tuple[str, ...] = ()
    """Names of the columns of train.tsv and dev.tsv, where their first line does not name them."""
    index: str = "index"
    """Column of test.tsv with the number that a prediction is submitted under."""
    hub_texts: tuple[str, ...] = ()
    """Columns of the texts in data sets of the Hub, where the official files have others."""
    source: str = ""
    """A file that the release's script makes train.tsv and dev.tsv from, by dev_ids.tsv."""
    archive: str = ""
    """Name of the archive; empty where it is the folder's."""
    evaluations: tuple[tuple[str, str], ...] = (("", "dev"),)
    """The files to score on: a group of examples and the beginning of a file's name each."""
    leaderboard: tuple[tuple[str, str, str], ...] = ()
    """The test sets: a group of examples, the beginning of a file's name, and the file to submit each; where it is
    empty, test.tsv alone, submitted as `FOLDER.tsv`."""

    @property
    def origin(self) -> str:
        """The archive that holds the files, for messages about missing ones."""
        return glue_archive(self.archive or self.folder)

    @property
    def test_sets(self) -> tuple[tuple[str, str, str], ...]:
        """The test sets, as in `leaderboard`."""
        return self.leaderboard or (("", "test", f"{self.folder}.tsv"),)

    def examples(self, path: Path, group: str = "", *, is_test: bool = False) -> Iterator[Example]:
        """Stream the examples of a file: of a test set without labels, named by the numbers that their predictions are
        submitted under.

        Raises:
            ConfigError: a line has other columns than the first, or an unknown label.
        """
        columns = (self.index, *self.texts) if is_test else (*self.texts, self.label)
        for row in read_table(path, columns, () if is_test else self.header, exact=True):
            name = row.values[self.index] if is_test else row.name
            label = UNLABELLED if is_test else self.label_number(row, row.values[self.label])
            yield self.example(name, [row.values[column] for column in self.texts], label, group)

    def example(self, name: str, texts: Sequence[str], label: float, group: str) -> Example:
        """An example of one text or two."""
        return Example(name, texts[0], texts[1] if len(texts) > 1 else None, label, group)

    def label_number(self, row: Row, label: str) -> float:
        """The index of a label among the labels, or the number itself, where labels are numbers.

        Raises:
            ConfigError: it is no label of the task.
        """
        column = f"the label in column `{self.label}` is {label!r}"
        if self.bounds is None:
            if label not in self.labels:
                raise row.error(f"{column}, not one of {', '.join(self.labels)}")
            return self.labels.index(label)
        try:
            number = float(label)
        except ValueError:
            raise row.error(f"{column}, no number") from None
        low, high = self.bounds
        if not low <= number <= high:
            raise row.error(f"{column}, not between {low:g} and {high:g}")
        return number

    def read_texts(self, path: Path) -> Iterator[NamedText]:
        """The texts of a file, by their lines."""
        # The first line of test.tsv always names the columns.
        header = () if path.name == "test.tsv" else self.header
        for row in read_table(path, self.texts, header):
            yield from ((row.name, row.values[column]) for column in self.texts)

    def sets(self, kind: str) -> tuple[EvaluationSet, ...]:
        """The texts of dev.tsv and, where it is there, test.tsv."""
        names = [(f"glue/{self.folder}/{stem}.tsv",) for stem in ("dev", "test")]
        return self.evaluation_sets or (EvaluationSet(kind, self.origin, self.read_texts, *names),)


_LABEL_AT_END = re.compile(r"\s+[01]$")


def _read_qqp_texts(path: Path) -> Iterator[NamedText]:
    """Question pairs, of the development set with or without a header; a label may be glued to the last question by a
    space."""
    if path.name == "test.tsv":
        yield from GLUE["qqp"].read_texts(path)
        return
    for name, line in read_lines(path):
        fields = line.split("\t")
        if fields[0] == "id":
            continue
        if len(fields) < 5:
            raise wrong_line(path, name, f"{len(fields)} columns, at least 5 are needed")
        yield name, fields[3].strip()
        yield name, (_LABEL_AT_END.sub("", fields[4]) if len(fields) == 5 else fields[4]).strip()


DEV_IDS = "dev_ids.tsv"
_ENTAILMENT = ("entailment", "not_entailment")

GLUE: Mapping[str, GlueRow] = {
    "cola": GlueRow(
        folder="CoLA",
        texts=("sentence",),
        header=("source", "label", "original judgment", "sentence"),
        names=("unacceptable", "acceptable"),
        metrics=("matthews", "accuracy"),
    ),
    "sst2": GlueRow(
        folder="SST-2", texts=("sentence",), names=("negative", "positive"), metrics=("accuracy",)
    ),
    "mrpc": GlueRow(
        folder="MRPC",
        texts=("#1 String", "#2 String"),
        label="Quality",
        names=("different", "paraphrase"),
        hub_texts=("sentence1", "sentence2"),
        source="msr_paraphrase_train.txt",
        metrics=("f1", "accuracy"),
    ),
    "stsb": GlueRow(folder="STS-B", label="score", bounds=(0.0, 5.0), metrics=("pearson", "spearman")),
    "qqp": GlueRow(
        folder="QQP",
        archive="QQP-clean",
        texts=("question1", "question2"),
        label="is_duplicate",
        names=("different", "duplicate"),
        index="id",
        evaluation_sets=(
            EvaluationSet(
                "qqp",
                glue_archive("QQP-clean"),
                _read_qqp_texts,
                ("glue/QQP/dev*.tsv",),
                ("glue/QQP/test.tsv",),
            ),
        ),
        metrics=("f1", "accuracy"),
    ),
    "qnli": GlueRow(
        folder="QNLI",
        archive="QNLIv2",
        texts=("question", "sentence"),
        labels=_ENTAILMENT,
        metrics=("accuracy",),
    ),
    "rte": GlueRow(folder="RTE", labels=_ENTAILMENT, metrics=("accuracy",)),
    "wnli": GlueRow(folder="WNLI", names=("not_entailment", "entailment"), metrics=("accuracy",)),
}
"""By kind; a further task of the same files is a line here."""


class GlueConfig(ClassificationTaskConfig):
    """A task of GLUE; sizes are those of training and evaluation.

    - cola, the Corpus of Linguistic Acceptability: is the sentence acceptable English? (Warstadt et al. 2019). 8,551
      and 1,043 sentences.
    - sst2, the Stanford Sentiment Treebank: is the film review phrase positive? (Socher et al. 2013). 67,349 phrases
      and 872 sentences.
    - mrpc, the Microsoft Research Paraphrase Corpus: do two sentences mean the same? (Dolan and Brockett 2005). 3,668
      and 408 pairs; copies with fewer are also accepted. GLUE's download_glue_data.py makes the files from
      msr_paraphrase_train.txt, which can be read as it is.
    - stsb, the Semantic Textual Similarity Benchmark: how similar are two sentences, from 0 to 5? (Cer et al. 2017).
      5,749 and 1,500 pairs.
    - qqp, Quora Question Pairs: do two questions ask the same? (Quora 2017). 363,846 and 40,430 pairs, QQP-clean.zip;
      the older QQP.zip has questions with line ends in them, which are refused by file and line.
    - qnli, questions of SQuAD, each with a sentence of its passage: does the sentence answer it? (Rajpurkar et al.
      2016). 104,743 and 5,463 pairs (QNLIv2).
    - rte, Recognizing Textual Entailment: does text two follow from text one? (Dagan et al. 2006). 2,490 and 277 pairs.
    - wnli, Winograd schemas: does text two, with a pronoun resolved, follow from text one? (Levesque et al. 2011). 635
      and 71 pairs. The evaluation pairs repeat sentences of the training pairs with the opposite label, so a network
      that learns the training pairs by heart scores below chance.
    """

    kind: Literal[*GLUE]  # pyright: ignore[reportInvalidTypeForm]
    path: Path
    """The unpacked folder, with train.tsv and dev.tsv (MRPC's also with msr_paraphrase_train.txt and GLUE's
    dev_ids.tsv); or a data set with the splits train and validation, as `datasets` saves it or the Hugging Face Hub
    keeps it."""
    submit: bool = False
    """Whether test.tsv is also predicted, in the file that the leaderboard takes."""

    rows = GLUE

    @property
    def regression(self) -> bool:
        return self.row.bounds is not None

    def load(self) -> TaskData[Example]:
        """Read `train.tsv` and `dev.tsv`, and `test.tsv` where it is to be predicted."""
        row = self.row
        train = self.split("train")
        evaluation = [self.split(stem, group) for group, stem in row.evaluations]
        test = [self.split(stem, group, is_test=True) for group, stem, _ in row.test_sets if self.submit]
        return TaskData.of_files(
            train[1],
            [example for _, examples in evaluation for example in examples],
            [path for paths, _ in (train, *evaluation, *test) for path in paths],
            () if self.regression else row.names or row.labels,
            [example for _, examples in test for example in examples],
        )

    def split(self, stem: str, group: str = "", *, is_test: bool = False) -> Split:
        """The examples of the file `STEM.tsv`, or of the split of a data set; those of a test set have no labels, and
        are named by the numbers that their predictions are submitted under."""
        if is_dataset(self.path):
            return self._hub_split(stem.replace("dev", "validation"), group, is_test=is_test)
        source = self.path / self.row.source
        is_made = bool(self.row.source) and not is_test
        if is_made and source.is_file() and not (self.path / f"{stem}.tsv").is_file():
            return self._source_split(source, is_held_out=stem == "dev")
        settings = "`path`, or leave `submit` out" if is_test else "`path`"
        path = require_file(self.path / f"{stem}.tsv", self.row.origin, settings)
        return [path], [*self.row.examples(path, group, is_test=is_test)]

    def _hub_split(self, split: str, group: str, *, is_test: bool) -> Split:
        """The examples of a data set's split, whose labels are numbers of `datasets.ClassLabel`, which has the order of
        our labels, or texts."""
        table, known = self.row, self.row.labels
        paths, rows = read_split(self.path, split)
        if not paths:
            raise MissingInputError(
                f"The data set {self.path} has no split `{split}`.",
                next_step="save it with all its splits, or name the folder of the official files",
            )
        examples = []
        for number, row in enumerate(rows):
            texts = [row.official_text(column) for column in table.hub_texts or table.texts]
            name, label = row.name, row.values.get("label")
            if is_test:
                name, label = str(row.values.get("idx", number)), UNLABELLED
            elif not isinstance(label, int) or table.bounds is not None:
                label = table.label_number(row, str(label))
            elif not 0 <= label < len(known):
                problem = f"the label is {label}, not from 0 to {len(known) - 1}; test sets have no labels"
                raise row.error(problem)
            examples.append(table.example(name, texts, label, group))
        return paths, examples

    def _source_split(self, source: Path, *, is_held_out: bool) -> Split:
        """The pairs of msr_paraphrase_train.txt that are, or are not, in dev_ids.tsv."""
        ids = require_file(self.path / DEV_IDS, f"GLUE's {DEV_IDS} ({self.row.origin})", "`path`")
        held_out = set()
        for name, line in read_lines(ids):
            pair = tuple(line.split("\t"))
            if len(pair) != 2:
                raise wrong_line(ids, name, f"{len(pair)} columns, 2 are needed")
            held_out.add(pair)
        chosen = {
            row.name
            for row in read_table(source, ("#1 ID", "#2 ID", self.row.label), exact=True)
            if ((row.values["#1 ID"], row.values["#2 ID"]) in held_out) == is_held_out
        }
        return [source, ids], [each for each in self.row.examples(source) if each.id in chosen]

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """`index` and `prediction` of every test example, in a tab-separated file for each test set."""
        predicted = zip(examples, map(self.submitted, self.predictions(outputs)), strict=True)
        rows = [(example.group, (example.id, value)) for example, value in predicted]
        return {
            file: submission_file(row for found, row in rows if found == group)
            for group, _, file in self.row.test_sets
        }

    def submitted(self, prediction: Any) -> str:
        """A prediction as the leaderboard takes it: the label as in the official files; a number with three decimals,
        inside of the bounds that human scores have."""
        if self.row.bounds is None:
            return self.row.labels[int(prediction)]
        low, high = self.row.bounds
        return f"{min(max(float(prediction), low), high):.3f}"


def submission_file(rows: Iterable[tuple[str, str]]) -> bytes:
    """Tab-separated `index` and `prediction`, as gluebenchmark.com takes them."""
    return "".join(f"{index}\t{value}\n" for index, value in (("index", "prediction"), *rows)).encode()
