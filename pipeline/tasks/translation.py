"""Translation of parallel files, a sentence in each line, as of WMT (Liu et al. 2020, section 3).

WMT16 English to Romanian has 610,320 training and 1,999 development and test pairs each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from pipeline.tasks.files.lines import read_lines, require_file, wrong_file
from pipeline.tasks.forms import GenerationTaskConfig, TextPair
from pipeline.tasks.metrics.texts import translation_metrics
from pipeline.tasks.task import TaskData


class TranslationConfig(GenerationTaskConfig):
    """Translation; defaults are those of mBART's released fine-tuning."""

    kind: Literal["translation"] = "translation"
    train_source: Path
    """Sentences to learn from, one in each line."""
    train_target: Path
    """Their translations, in the same lines."""
    source: Path
    """Sentences to score on."""
    target: Path
    """Their translations."""
    language: str | None = None
    """Language tag of the sources such as `en_XX`, for networks that were pre-trained with language tags (mBART)."""
    target_language: str | None = None
    """Language tag of the targets such as `ro_RO`."""
    prefix: str = ""
    """Written before every source, such as `translate English to Romanian: ` for T5."""
    tokenize: Literal["13a", "intl", "char", "zh"] = "13a"
    """How sacrebleu cuts the texts into words; 13a for most languages, zh for Chinese."""
    max_target_length: int = Field(default=200, ge=8)
    """Tokens of a target with its special tokens; longer ones are cut, in training and in writing."""
    min_target_length: int = Field(default=0, ge=0)
    """Tokens of the shortest text that is written."""
    num_beams: int = Field(default=5, gt=0)
    """Texts that the search follows at once; 1 always takes the likeliest token."""
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    """No sequence of this many tokens is written twice; 0 allows it."""
    label_smoothing: float = Field(default=0.2, ge=0, lt=1)
    """Probability that training gives to all tokens alike (Szegedy et al. 2016, section 7)."""

    carriers = ("encoder_decoder",)
    metrics = ("bleu", "chrf")

    @model_validator(mode="after")
    def _languages(self) -> TranslationConfig:
        if self.target_language is not None and self.language is None:
            raise ValueError("target_language also needs language, the tag of the sources")
        return self

    @property
    def written_language(self) -> str | None:
        return self.target_language

    def load(self) -> TaskData[TextPair]:
        train = self._pairs(self.train_source, self.train_target)
        evaluation = self._pairs(self.source, self.target)
        paths = [self.train_source, self.train_target, self.source, self.target]
        return TaskData.of_files(train, evaluation, paths)

    def measure(self, pairs: Sequence[TextPair], texts: Sequence[str]) -> dict[str, float]:
        """BLEU and chrF of all texts together."""
        return translation_metrics([pair.target for pair in pairs], texts, self.tokenize)[0]

    def signatures(self) -> dict[str, str]:
        """How sacrebleu computed BLEU and chrF."""
        return translation_metrics(["a"], ["a"], self.tokenize)[1]

    def _pairs(self, source: Path, target: Path) -> list[TextPair]:
        """The pairs of two files; those with an empty side are left out, because there is nothing to translate."""
        read, written = (
            list(read_lines(require_file(path, "a file with a sentence in each line", "paths")))
            for path in (source, target)
        )
        if len(read) != len(written):
            raise wrong_file(f"{source} has {len(read)} lines, but {target} has {len(written)}")
        pairs = (
            TextPair(name, self.prefix + text.strip(), translated.strip())
            for (name, text), (_, translated) in zip(read, written, strict=True)
        )
        return [pair for pair in pairs if pair.source.removeprefix(self.prefix) and pair.target]
