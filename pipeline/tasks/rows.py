"""Tasks on one's own rows, whose columns the configuration names: labels, numbers, tags and texts.

Questions with choices or passages are in `rows_questions.py`, conversations in `instructions.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from cluster.artefacts.errors import ConfigError
from pipeline.config.loading import Config
from pipeline.samples.noise import Noise
from pipeline.tasks.files.lines import json_lines, require_file
from pipeline.tasks.files.rows import SUFFIXES, Row, read_rows
from pipeline.tasks.forms import (
    UNLABELLED,
    ClassificationTaskConfig,
    Example,
    GenerationTaskConfig,
    TaggedSentence,
    TagsTaskConfig,
    TextPair,
)
from pipeline.tasks.metrics.entities import OUTSIDE, entity_metrics
from pipeline.tasks.task import TaskConfig, TaskData, file_input

MOST_NAMED = 20
"""Labels that an error names, at most."""


def rows_of(path: Path) -> Iterator[Row]:
    """Stream the rows of a file.

    Raises:
        MissingInputError: it is missing.
        ConfigError: it cannot be read; the line is named.
    """
    return read_rows(require_file(path, f"a file of rows ({SUFFIXES})", "`train` and `evaluation`"))


class RowsTaskConfig(TaskConfig):
    """Settings that tasks on one's own rows share."""

    train: Path
    """The file to learn from: .csv, .tsv (no quoting), .jsonl, .json (objects in lines, or in one list), all these also
    gzipped (.gz); or .parquet."""
    evaluation: Path | None = None
    """The file to score on, likewise; null scores on a share of `train` and learns from the rest."""
    evaluation_share: float = Field(default=0.1, gt=0, lt=1)
    """Without `evaluation`: the share of the rows of `train` to score on, drawn by a hash of their names."""

    def load(self) -> TaskData[Any]:
        """Read the files.

        Raises:
            ConfigError: there are too few rows to score on some of them.
        """
        labels = self.label_names()
        files = [path for path in (self.train, self.evaluation) if path is not None]
        train, *given = ([self.example(row, labels) for row in rows_of(path)] for path in files)
        if given:
            return TaskData.of_files(train, given[0], files, labels)
        sides: tuple[list[Any], list[Any]] = ([], [])
        for example in train:
            draw = float(Noise.of("rows-split", example.id).uniform())
            sides[draw < self.evaluation_share].append(example)
        if train and not sides[1]:
            raise ConfigError(
                f"None of the {len(train)} rows of {self.train} fell to the side to score on.",
                next_step="name a file of rows to score on as `evaluation`, or raise `evaluation_share`",
            )
        return TaskData.of_files(*sides, files, labels)

    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, in the order of their numbers; empty where nothing is classified."""
        return ()

    def example(self, row: Row, labels: tuple[str, ...]) -> Any:
        """The example of a row.

        Raises:
            ConfigError: a column is missing, or its value is not as described.
        """
        raise NotImplementedError


class TextColumns(Config):
    """Names of the columns."""

    text: str = "text"
    """The text, or the first one of a pair."""
    text_b: str | None = None
    """The second text of a pair; null for single texts."""
    label: str = "label"
    """The label, or the number to predict."""
    id: str | None = None
    """Names of examples in the predictions; null takes file and line."""


class TextRowsConfig(RowsTaskConfig, ClassificationTaskConfig):
    """Settings that classification and regression of one's own texts share."""

    columns: TextColumns = TextColumns()
    """Names of the columns."""
    test: Path | None = None
    """Rows without labels to predict after the training, in test-predictions.jsonl."""

    def load(self) -> TaskData[Example]:
        data = super().load()
        if self.test is None:
            return data
        test = tuple(self._example(row, UNLABELLED) for row in rows_of(self.test))
        return dataclasses.replace(data, test=test, inputs=(*data.inputs, file_input(self.test)))

    def example(self, row: Row, labels: tuple[str, ...]) -> Example:
        return self._example(row, self.target(row, labels))

    def target(self, row: Row, labels: tuple[str, ...]) -> float:
        """The index of the label of a row, or the number to predict.

        Raises:
            ConfigError: there is none.
        """
        raise NotImplementedError

    def submission(
        self, examples: Sequence[Example], outputs: np.ndarray, labels: Sequence[str] = ()
    ) -> dict[str, bytes]:
        """JSON lines: id and prediction, and of labels the score of each."""
        predicted = zip(examples, self.predictions(outputs).tolist(), outputs.tolist(), strict=True)
        lines = [
            {"id": example.id}
            | ({"prediction": labels[value], "logits": scores} if labels else {"prediction": value})
            for example, value, scores in predicted
        ]
        return {"test-predictions.jsonl": json_lines(lines)}

    def _example(self, row: Row, target: float) -> Example:
        columns = self.columns
        second = None if columns.text_b is None else row.text("text_b", columns.text_b)
        return Example(row.id(columns.id), row.text("text", columns.text), second, target)


class RowsClassificationConfig(TextRowsConfig):
    """Classification of one's own texts, or pairs of texts."""

    kind: Literal["rows_classification"] = "rows_classification"
    labels: tuple[str, ...] | None = Field(default=None, min_length=2)
    """All labels, in the order of their numbers; null takes those of the training file, sorted."""

    metrics = ("accuracy", "macro_f1", "matthews")

    def label_names(self) -> tuple[str, ...]:
        """`labels`; else those of the training file, sorted as numbers where all are whole numbers, otherwise as texts.

        Raises:
            ConfigError: the training file has no rows, or the same label in all of them.
        """
        if self.labels is not None:
            return self.labels
        column = self.columns.label
        found = {row.label(column) for row in rows_of(self.train)}
        if not found:
            raise ConfigError(
                f"There are no rows in {self.train}.",
                next_step="name a file of rows to learn from as `train`",
            )
        if len(found) == 1:
            raise ConfigError(
                f"All rows of {self.train} have the same label in the column `{column}`, but two are needed.",
                next_step="set columns.label to the column of labels, or name all labels in `labels`",
            )
        numeric = all(label.isdecimal() for label in found)
        return tuple(sorted(found, key=(lambda label: (int(label), label)) if numeric else str))

    def target(self, row: Row, labels: tuple[str, ...]) -> float:
        label = row.label(self.columns.label)
        if label not in labels:
            more = [f"{len(labels) - MOST_NAMED:,} more"] if len(labels) > MOST_NAMED else []
            known = ", ".join([*map(repr, labels[:MOST_NAMED]), *more])
            problem = f"the label in column `{self.columns.label}` is {label!r}, not one of {known}"
            raise row.error(problem, "correct the row, or name all labels in `labels`")
        return labels.index(label)


class RowsRegressionConfig(TextRowsConfig):
    """Prediction of a number for one's own texts, or pairs of texts."""

    kind: Literal["rows_regression"] = "rows_regression"

    metrics = ("pearson", "spearman")
    regression = True

    def target(self, row: Row, labels: tuple[str, ...]) -> float:
        """The index of the column of labels.

        Raises:
            ConfigError: there is no such column, or its value is not a finite number.
        """
        value = row.value("label", self.columns.label)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            problem = f"the column `{self.columns.label}` holds {value!r}, no number"
            raise row.error(problem, "correct the row, or leave it out")
        return number


class TagColumns(Config):
    """Names of the columns."""

    words: str = "tokens"
    """The words: a list, or a text with spaces between them."""
    tags: str = "tags"
    """As many tags, likewise."""
    id: str | None = None
    """Names of sentences in the predictions; null takes file and line."""


class RowsTagsConfig(RowsTaskConfig, TagsTaskConfig):
    """Tagging of one's own sentences."""

    kind: Literal["rows_tags"] = "rows_tags"
    columns: TagColumns = TagColumns()
    """Names of the columns."""
    labels: tuple[str, ...] | None = None
    """All tags, in the order of their numbers; null takes those of the training file, sorted, `O` first."""

    metrics = ("accuracy",)
    outside = OUTSIDE

    def label_names(self) -> tuple[str, ...]:
        """`labels`; else the tags of the training file, sorted, `O` first."""
        if self.labels is not None:
            return self.labels
        found = {tag for row in rows_of(self.train) for tag in self._sentence(row).tags}
        return tuple(sorted(found, key=lambda tag: (tag != OUTSIDE, tag)))

    def example(self, row: Row, labels: tuple[str, ...]) -> TaggedSentence:
        """The sentence; a tag that is no label is refused."""
        sentence = self._sentence(row)
        if unknown := [tag for tag in sentence.tags if tag not in labels]:
            problem = f"the tag {unknown[0]!r} is none of {', '.join(labels)}"
            raise row.error(problem, "correct the row, or name all tags in `labels`")
        return sentence

    def measure(
        self, sentences: Sequence[TaggedSentence], predictions: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """Accuracy; where tags mark entities (`B-TYPE`), also precision, recall and F1 of entities."""
        found = super().measure(sentences, predictions)
        right = [sentence.tags for sentence in sentences]
        marked = any(tag.startswith("B-") for tags in right for tag in tags)
        return found | (entity_metrics(right, predictions) if marked else {})

    def _sentence(self, row: Row) -> TaggedSentence:
        words, tags = row.words("words", self.columns.words), row.words("tags", self.columns.tags)
        if len(words) != len(tags) or not words:
            raise row.error(f"there are {len(words)} words and {len(tags)} tags", "give every word one tag")
        return TaggedSentence(row.id(self.columns.id), tuple(words), tuple(tags))


class PairColumns(Config):
    """Names of the columns."""

    source: str = "source"
    """The text to read."""
    target: str = "target"
    """The text to write."""
    id: str | None = None
    """Names of pairs in the predictions; null takes file and line."""


class RowsGenerationConfig(RowsTaskConfig, GenerationTaskConfig):
    """Generation of a text for each of one's own texts."""

    kind: Literal["rows_generation"] = "rows_generation"
    columns: PairColumns = PairColumns()
    """Names of the columns."""

    metrics = ("rouge1", "rouge2", "rouge_l")

    def example(self, row: Row, labels: tuple[str, ...]) -> TextPair:
        columns = self.columns
        source, target = row.text("source", columns.source), row.text("target", columns.target)
        return TextPair(row.id(columns.id), source.strip(), target.strip())
