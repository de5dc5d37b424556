"""The forms of tasks: their examples, settings and metrics. `pipeline/tune/forms/` trains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field, model_validator

from cluster.artefacts.errors import MismatchError
from models.config import NetworkConfig
from pipeline.tasks.metrics.entities import tag_accuracy
from pipeline.tasks.task import TaskConfig, check_positions

if TYPE_CHECKING:
    from models.hf.heads import Head
    from pipeline.tasks.tokenizer import GenerationFormat, Reading, TextTokenizer

UNLABELLED = -1
"""The label of an example of a test set."""


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text or pair of texts."""

    id: str
    """Unique in its split, such as `dev-17`; names the example in the predictions."""
    text_a: str
    text_b: str | None
    """The second text of a pair; None for single texts."""
    label: float
    """Index into the task's labels, an int; the number to predict in a regression; UNLABELLED where it is secret."""
    group: str = ""
    """The evaluation set, or the question, that the example belongs to, where the metrics of a task ask for it."""

    @property
    def texts(self) -> tuple[str, ...]:
        """One text or two."""
        return (self.text_a,) if self.text_b is None else (self.text_a, self.text_b)


class ClassificationTaskConfig(TaskConfig):
    """Settings that tasks of classification share."""

    form = "classification"
    carriers = ("encoder", "decoder", "encoder_decoder", "elmo")
    head = "sequence_classification"

    regression: ClassVar[bool] = False
    """Whether a number is predicted instead of a label."""

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Per example its label, int64, or its number, float32, from outputs [examples, labels or 1]."""
        return outputs[:, 0] if self.regression else outputs.argmax(-1)

    def measure(self, examples: Sequence[Example], outputs: np.ndarray) -> dict[str, float]:
        """The metrics of all examples together; tasks whose metrics look at groups have their own.

        Args:
            outputs: float32 [examples, labels or 1], the scores of labels or the predicted number.
        """
        # scikit-learn and scipy are not needed to read a configuration.
        from pipeline.tasks.metrics import measure

        return measure(self.metrics, np.array([each.label for each in examples]), self.predictions(outputs))


@dataclass(frozen=True, slots=True)
class Choices:
    """A question with texts to choose from, each read as a pair."""

    id: str
    """Unique in its split; names the example in the predictions."""
    pairs: tuple[tuple[str, str], ...]
    """Per choice the two texts that are read together, such as the passage, and the question with this answer."""
    label: int
    """Index of the right choice."""
    group: str = ""
    """The evaluation set, or the passage, that the example belongs to, where the metrics of a task ask for it."""
    accepted: tuple[int, ...] = ()
    """Choices that count as right, where there are several; training learns `label`."""
    answers: tuple[str, ...] = ()
    """The text of each choice alone, where the metrics of a task compare texts."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that are read, each once."""
        return tuple(dict.fromkeys(text for pair in self.pairs for text in pair))


class ChoicesTaskConfig(TaskConfig):
    """Settings that tasks of multiple choice share."""

    form = "choices"
    carriers = ("encoder", "decoder", "encoder_decoder")
    head = "multiple_choice"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """int64 [examples]: the chosen text of each, from outputs [examples, most choices]."""
        return outputs.argmax(-1)

    def measure(self, examples: Sequence[Choices], outputs: np.ndarray) -> dict[str, float]:
        """The share of the examples whose chosen text is right.

        Args:
            outputs: float32 [examples, most choices], scores; -inf where an example has fewer choices.
        """
        chosen = self.predictions(outputs).tolist()
        right = [n in (each.accepted or (each.label,)) for each, n in zip(examples, chosen, strict=True)]
        return {"accuracy": sum(right) / len(right)}


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """A sentence whose words have tags."""

    id: str
    """Unique in its split, such as `dev-17`; names the sentence in the predictions."""
    words: tuple[str, ...]
    tags: tuple[str, ...]
    """As many as words, all of them labels of the task."""


class TagsTaskConfig(TaskConfig):
    """Settings that tasks of tagging share."""

    form = "tags"
    carriers = ("encoder", "decoder", "elmo")
    head = "token_classification"

    outside: ClassVar[str]
    """The tag of words that a sequence had no room for; the first label where the task has no such tag."""

    def measure(
        self, sentences: Sequence[TaggedSentence], predictions: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """The share of the words that have the right tag.

        Args:
            predictions: per sentence a tag for each word.
        """
        return {"accuracy": tag_accuracy([sentence.tags for sentence in sentences], predictions)}


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
    """Whether every question has an answer; otherwise the first token of a window, `<s>`, means no answer."""

    def no_answer_threshold(self) -> float | None:
        """The probability of having no answer above which none is predicted; None takes the best on the evaluation
        questions."""
        return None

    def check_lengths(
        self, name: str, max_length: int, network: NetworkConfig, tokenizer: TextTokenizer
    ) -> None:
        """Check that a window also has room for some of the passage.

        Raises:
            MismatchError: the longest question fills a window.
        """
        from pipeline.tasks.tokenizer import sequence_format

        super().check_lengths(name, max_length, network, tokenizer)
        around = self.max_query_length + sequence_format(network, tokenizer).specials_of_pair
        if max_length <= around:
            raise MismatchError(
                f"The task {name} takes windows of {max_length} tokens, of which the longest question with special"
                f" tokens needs {around}, so that nothing of the passage is seen.",
                next_step=f"raise training.max_length, or lower tasks.{name}.max_query_length",
            )


@dataclass(frozen=True, slots=True)
class TextPair:
    """A text to read, and the text to write."""

    id: str
    source: str
    target: str

    @property
    def texts(self) -> tuple[str, str]:
        """Both texts."""
        return self.source, self.target


class GenerationTaskConfig(TaskConfig):
    """Settings that tasks of generation share; defaults are those of BART's released fine-tuning on XSum."""

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

    prompt: str = "\nTL;DR:"
    """Written after every source where a decoder writes; an encoder-decoder needs none (Radford et al. 2019, section
    3.6)."""

    num_lead: ClassVar[int | None] = None
    """Sentences at the beginning of a source that are the baseline of summaries; None where there is no such
    baseline."""

    form = "generation"
    carriers = ("encoder_decoder", "decoder")
    head = "seq2seq_lm"

    @classmethod
    def head_of(cls, network: NetworkConfig) -> Head:
        """A decoder stays a causal language model."""
        return "causal_lm" if network.network == "decoder" else cls.head

    def format(self, network: NetworkConfig, tokenizer: TextTokenizer) -> GenerationFormat:
        """The tokens around sources and targets: of a decoder `<s> source prompt`, and `target </s>` after it."""
        from pipeline.tasks.tokenizer import GenerationFormat, SequenceFormat, generation_format

        if network.network != "decoder":
            return generation_format(network, tokenizer, self.language, self.written_language)
        bos, eos = tokenizer.special["bos"], tokenizer.special["eos"]
        prompt = tokenizer.rows([self.prompt])[0].tolist()
        return GenerationFormat(
            SequenceFormat((bos,), (), tuple(prompt)), SequenceFormat((), (), (eos,)), bos
        )

    def reading(self, network: NetworkConfig, tokenizer: TextTokenizer) -> Reading:
        """Sources as `format` has them, and the search."""
        from models.generation.config import GenerationConfig
        from pipeline.tasks.tokenizer import Reading

        layout = self.format(network, tokenizer)
        search = GenerationConfig(
            num_beams=self.num_beams,
            max_new_tokens=self.max_target_length,
            min_new_tokens=self.min_target_length,
            length_penalty=self.length_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            decoder_start_token_id=layout.start,
            eos_token_id=tokenizer.special["eos"],
            pad_token_id=tokenizer.pad_id,
        )
        tags = tuple(tag for tag in (self.language, self.written_language) if tag is not None)
        return Reading(layout.source, search, special_tokens=tags)

    def measure(self, pairs: Sequence[TextPair], texts: Sequence[str]) -> dict[str, float]:
        """ROUGE of generated texts, one for each pair."""
        from pipeline.tasks.metrics.texts import rouge

        found = rouge([pair.target for pair in pairs], texts)
        return {name: found[name] for name in self.metrics}

    def signatures(self) -> dict[str, str]:
        """How its package computed each metric, where that must be reported; empty otherwise."""
        return {}

    def lead(self, source: str) -> str:
        """The text of a source whose first sentences are the baseline."""
        return source

    @property
    def written_language(self) -> str | None:
        """The language tag of the targets, where `language` is the one of the sources."""
        return self.language

    @model_validator(mode="after")
    def _lengths(self) -> GenerationTaskConfig:
        if self.min_target_length >= self.max_target_length:
            raise ValueError(
                f"min_target_length {self.min_target_length} must be below max_target_length"
                f" {self.max_target_length}"
            )
        return self

    def check_lengths(
        self, name: str, max_length: int, network: NetworkConfig, tokenizer: TextTokenizer
    ) -> None:
        """Check the lengths of sources and targets."""
        if network.network == "decoder":
            further = self.max_target_length
            check_positions(name, "training.max_length", max_length, network, further=further)
            return
        super().check_lengths(name, max_length, network, tokenizer)
        # The decoder reads its start token before the target.
        check_positions(name, f"tasks.{name}.max_target_length", self.max_target_length, network, further=1)
