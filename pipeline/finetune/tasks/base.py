"""What every task offers: its configuration, its form, its metrics, and its examples.

A task is a module in this package with a frozen config class, `METRICS` and `load(config)`.
`pipeline/finetune/tasks/__init__.py` names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, model_validator

from cluster.artefacts.manifest import InputEntry
from pipeline.config.loading import Config
from pipeline.finetune.settings import TrainingOverrides

FormName = Literal["classification", "spans", "generation"]
"""What a task asks of a network: a label, a span of a text, or a text."""


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text or pair of texts."""

    id: str
    """Unique in its split, such as `dev-17`; names the example in the predictions."""
    text_a: str
    text_b: str | None
    """The second text of a pair; None for single sentences."""
    label: int
    """Index into the task's labels."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of a text."""

    text: str
    start: int
    """Character of the context that the text begins at."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a span of its context answers."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    """Every answer that counts as right; training learns the first."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """A text, and what is to be written when it has been read."""

    id: str
    source: str
    target: str


ExampleKind = TypeVar("ExampleKind", Example, Question, TextPair)


@dataclass(frozen=True, slots=True)
class TaskData(Generic[ExampleKind]):
    """The examples of a task."""

    train: tuple[ExampleKind, ...]
    evaluation: tuple[ExampleKind, ...]
    labels: tuple[str, ...]
    """Names of the labels, in the order of their numbers; none where nothing is classified."""
    inputs: tuple[InputEntry, ...]
    """The files or artefacts that the examples were read from."""


class TaskConfig(Config):
    """What all tasks have in common; every subclass adds a `kind`."""

    training: TrainingOverrides = TrainingOverrides()
    """Training settings in which this task differs from the shared ones."""

    def identity(self) -> dict[str, Any]:
        """What determines the examples besides the inputs: neither paths nor training settings."""
        paths = {name for name in type(self).model_fields if isinstance(getattr(self, name), Path)}
        return self.model_dump(mode="json", exclude=paths | {"training"})


class SpanTaskConfig(TaskConfig):
    """What tasks have in common that ask for a span; defaults are those of BERT's released code."""

    doc_stride: int = Field(default=128, gt=0)
    """Tokens between the beginnings of neighbouring windows over a long passage."""
    max_query_length: int = Field(default=64, gt=0)
    """Tokens of a question; longer ones are cut."""
    max_answer_length: int = Field(default=30, gt=0)
    """Tokens of the longest predicted answer."""
    n_best: int = Field(default=20, gt=0)
    """Best spans kept of every window, and answers listed for every question."""


class GenerationTaskConfig(TaskConfig):
    """What tasks have in common that ask for a text; defaults are those of BART's released fine-tuning on XSum."""

    max_target_length: int = Field(default=62, ge=8)
    """Tokens of a target with its special tokens; longer ones are cut, in training and in writing."""
    min_target_length: int = Field(default=11, ge=0)
    """Tokens of the shortest text that is written."""
    num_beams: int = Field(default=6, gt=0)
    """Texts that the search follows at once; 1 always takes the likeliest token."""
    length_penalty: float = 1.0
    """Scores of finished texts are divided by their length to this power."""
    no_repeat_ngram_size: int = Field(default=3, ge=0)
    """No sequence of this many tokens is written twice; 0 allows it."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Probability that training gives to all tokens alike (Szegedy et al. 2016, section 7)."""
    language: str | None = None
    """Language tag such as `en_XX`, for networks that were pre-trained with language tags (mBART)."""

    @model_validator(mode="after")
    def _lengths(self) -> GenerationTaskConfig:
        if self.min_target_length >= self.max_target_length:
            raise ValueError(
                f"min_target_length {self.min_target_length} must be below max_target_length"
                f" {self.max_target_length}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Task:
    """One registered kind of task."""

    form: FormName
    load: Callable[[Any], TaskData[Any]]
    """Reads the examples that a config of this kind describes."""
    metrics: tuple[str, ...]
    """Names of what the form measures; the first is the one that tables show."""
