"""Settings and examples of question answering by spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from cluster.artefacts.errors import MismatchError
from models.config import NetworkConfig
from pipeline.tune.task import TaskConfig

if TYPE_CHECKING:
    from pipeline.tune.tokenizer import TextTokenizer


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
    """Every answer that counts as right; training learns the first. Empty where the context does not answer."""
    accepted: tuple[str, ...] = ()
    """The texts that count as right, where they are others than those of `answers`."""

    @property
    def right(self) -> tuple[str, ...]:
        """The texts that count as right."""
        return self.accepted or tuple(answer.text for answer in self.answers)


class SpanTaskConfig(TaskConfig):
    """Settings that tasks of question answering share; defaults are those of BERT's released code."""

    doc_stride: int = Field(default=128, gt=0)
    """Tokens between the beginnings of neighbouring windows over a long passage."""
    max_query_length: int = Field(default=64, gt=0)
    """Tokens of a question; longer ones are cut."""
    max_answer_length: int = Field(default=30, gt=0)
    """Tokens of the longest predicted answer."""
    n_best: int = Field(default=20, gt=0)
    """Best spans kept of every window, and answers listed for every question."""

    form = "spans"
    carriers = ("encoder", "decoder", "encoder_decoder")
    head = "question_answering"

    answerable: ClassVar[bool] = True
    """Whether every question has an answer; otherwise the first token of a window, `<s>`, stands for having none."""

    def no_answer_threshold(self) -> float | None:
        """The probability of having no answer above which none is predicted; None takes the best on the evaluation
        questions."""
        return None

    def check_lengths(
        self, name: str, max_length: int, network: NetworkConfig, tokenizer: TextTokenizer
    ) -> None:
        """Check that a window has room for some of the passage, too.

        Raises:
            MismatchError: the longest question fills a window.
        """
        from pipeline.tune.tokenizer import sequence_format

        super().check_lengths(name, max_length, network, tokenizer)
        around = self.max_query_length + sequence_format(network, tokenizer).specials_of_pair
        if max_length <= around:
            raise MismatchError(
                f"The task {name} takes windows of {max_length} tokens, of which the longest question with special"
                f" tokens needs {around}, so that nothing of the passage is seen.",
                next_step=f"raise training.max_length, or lower tasks.{name}.max_query_length",
            )
