"""Settings and examples of the generation of a text for a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from models.config import NetworkConfig
from pipeline.tune.task import TaskConfig, check_positions

if TYPE_CHECKING:
    from models.hf.heads import Head
    from pipeline.tune.text_reading import Reading
    from pipeline.tune.tokenizer import GenerationFormat, TextTokenizer


@dataclass(frozen=True, slots=True)
class TextPair:
    """A text to read, and the text to write."""

    id: str
    source: str
    target: str


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
        from pipeline.tune.tokenizer import GenerationFormat, SequenceFormat, generation_format

        if network.network != "decoder":
            return generation_format(network, tokenizer, self.language, self.written_language)
        bos, eos = tokenizer.special["bos"], tokenizer.special["eos"]
        (prompt,) = tokenizer.ids([self.prompt])
        return GenerationFormat(
            SequenceFormat((bos,), (), tuple(prompt)), SequenceFormat((), (), (eos,)), bos
        )

    def reading(self, network: NetworkConfig, tokenizer: TextTokenizer) -> Reading:
        """Sources as `format` has them, and the search."""
        from models.generation.config import GenerationConfig
        from pipeline.tune.text_reading import Reading

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
        # Neither numpy's nor rouge-score's imports are needed to read a configuration.
        from pipeline.tune.metrics.rouge import rouge

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
