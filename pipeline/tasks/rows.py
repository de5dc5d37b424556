"""Tasks on one's own rows, whose columns the configuration names. Conversations are in `instructions.py`."""

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
    Answer,
    Choices,
    ChoicesTaskConfig,
    ClassificationTaskConfig,
    Example,
    GenerationTaskConfig,
    Question,
    SpanTaskConfig,
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
        test = tuple(self.example(row, None) for row in rows_of(self.test))
        return dataclasses.replace(data, test=test, inputs=(*data.inputs, file_input(self.test)))

    def example(self, row: Row, labels: tuple[str, ...] | None) -> Example:
        """The text or the pair; where `labels` is None, without a label."""
        columns = self.columns
        second = None if columns.text_b is None else row.text("text_b", columns.text_b)
        target = UNLABELLED if labels is None else self.target(row, labels)
        return Example(row.id(columns.id), row.text("text", columns.text), second, target)

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


class RowsClassificationConfig(TextRowsConfig):
    """Classification of one's own texts, or pairs of texts."""

    kind: Literal["rows_classification"] = "rows_classification"
    labels: tuple[str, ...] | None = Field(default=None, min_length=2)
    """All labels, in the order of their numbers; null takes those of the training file, sorted."""

    metrics = ("accuracy", "macro_f1", "matthews")

    def label_names(self) -> tuple[str, ...]:
        """`labels`; else those of the training file, sorted as numbers where all are whole numbers, else as texts."""
        if self.labels is not None:
            return self.labels
        column = self.columns.label
        found = {row.label(column) for row in rows_of(self.train)}
        if len(found) < 2:
            problem = (
                f"All rows of {self.train} have the same label in the column `{column}`, but two are needed."
            )
            remedy = "set columns.label to the column of labels, or name all labels in `labels`"
            if not found:
                problem = f"There are no rows in {self.train}."
                remedy = "name a file of rows to learn from as `train`"
            raise ConfigError(problem, next_step=remedy)
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


class ChoiceColumns(Config):
    """Names of the columns."""

    question: str = "question"
    """The question, or the beginning that the choices continue."""
    choices: str | tuple[str, ...] = "choices"
    """The column that holds a list of choices; or a list of columns, one for each choice."""
    label: str = "label"
    """The number of the right choice from 0, its letter from A, or its text."""
    context: str | None = None
    """A passage that the question is about; null where there is none."""
    id: str | None = None
    """Names of examples in the predictions; null takes file and line."""


class RowsChoicesConfig(RowsTaskConfig, ChoicesTaskConfig):
    """Multiple choice on one's own questions."""

    kind: Literal["rows_choices"] = "rows_choices"
    columns: ChoiceColumns = ChoiceColumns()
    """Names of the columns."""

    metrics = ("accuracy",)

    def example(self, row: Row, labels: tuple[str, ...]) -> Choices:
        """The question with its choices; a context precedes the question."""
        columns, named = self.columns, self.columns.choices
        first = row.text("question", columns.question)
        if isinstance(named, tuple):
            choices = [row.text("choices", column) for column in named]
        else:
            choices = row.value("choices", named)
            is_list = isinstance(choices, list) and len(choices) >= 2
            if not is_list or not all(isinstance(each, str) for each in choices):
                remedy = "set columns.choices to a column of lists, or to a list of columns"
                raise row.error(
                    f"the column `{named}` holds {choices!r}, no list of two or more texts", remedy
                )
        seconds = choices
        if columns.context is not None:
            question, first = first, row.text("context", columns.context)
            seconds = [f"{question} {choice}" for choice in choices]
        pairs = tuple((first, second) for second in seconds)
        return Choices(row.id(columns.id), pairs, _right_choice(row, columns.label, choices))


def _right_choice(row: Row, column: str, choices: list[str]) -> int:
    """The right choice; numbers that are no texts count from 0."""
    label = row.label(column)
    numbers = [str(number) for number in range(len(choices))]
    letters = [chr(ord("A") + number) for number in range(len(choices))]
    is_text = isinstance(row.values[column], str)
    found = {
        names.index(label)
        for names in ((numbers, letters, choices) if is_text else (numbers,))
        if label in names
    }
    if len(found) == 1:
        return found.pop()
    problem = f"the label in column `{column}` is {label!r}"
    if found:
        remedy = "give all labels as letters from A, or in JSON lines or Parquet as numbers from 0"
        raise row.error(f"{problem}, the text of one choice and the number or letter of another one", remedy)
    last = f"from 0 to {numbers[-1]}, from A to {letters[-1]}, or the text of a choice"
    raise row.error(problem, f"give a label {last}")


class SpanColumns(Config):
    """Names of the columns."""

    question: str = "question"
    """The question."""
    context: str = "context"
    """The passage."""
    answer: str = "answers"
    """The answer; or a list of answers that count as right; or, as the Hugging Face Hub keeps SQuAD, an object with
    lists `text` and `answer_start`."""
    start: str | None = None
    """The character of the passage that the answer begins at, from 0; null takes the first place where it occurs."""
    id: str | None = None
    """Names of questions in the predictions; null takes file and line."""


class RowsSpansConfig(RowsTaskConfig, SpanTaskConfig):
    """Question answering by spans of one's own passages."""

    kind: Literal["rows_spans"] = "rows_spans"
    columns: SpanColumns = SpanColumns()
    """Names of the columns."""

    metrics = ("f1", "exact_match")

    def example(self, row: Row, labels: tuple[str, ...]) -> Question:
        """The question, with its answers at their places."""
        columns = self.columns
        context = row.text("context", columns.context)
        value = row.value("answer", columns.answer)
        if isinstance(value, dict):
            texts, starts = value.get("text"), value.get("answer_start")
        else:
            texts = value if isinstance(value, list) else [value]
            found = None if columns.start is None else row.value("start", columns.start)
            starts = [None] * len(texts) if found is None else found if isinstance(found, list) else [found]
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            remedy = "give a text, a list of texts, or lists `text` and `answer_start` of one length"
            raise row.error(f"the answers {value!r} cannot be read", remedy)
        answers = tuple(_answer(row, context, *each) for each in zip(texts, starts, strict=True))
        if not answers:
            remedy = "leave the row out; questions without an answer are learnt by the task squad2"
            raise row.error("there is no answer", remedy)
        return Question(row.id(columns.id), row.text("question", columns.question), context, answers)


def _answer(row: Row, context: str, text: Any, start: Any) -> Answer:
    """The answer at its place, which is searched for where `start` is None."""
    remedy = "copy the answer from its passage letter by letter, or leave the row out"
    if not isinstance(text, str) or not text.strip():
        raise row.error(f"the answer {text!r} is no text", remedy)
    if start is None:
        place = context.find(text)
        if place < 0:
            raise row.error(f"the answer {text!r} does not occur in its passage", remedy)
        return Answer(text, place)
    try:
        place = int(start)
    except (TypeError, ValueError):
        raise row.error(
            f"the place {start!r} of the answer is no number", "count characters from 0"
        ) from None
    if place < 0 or context[place : place + len(text)] != text:
        raise row.error(f"the answer {text!r} is not at character {place}", "count characters from 0")
    return Answer(text, place)
