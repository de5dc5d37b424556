"""Sentences from the documents that pre-training did not see, for tasks that are made at run time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from cluster.artefacts.errors import ConfigError, MismatchError
from cluster.artefacts.manifest import InputEntry
from pipeline.samples.noise.noise import Noise
from pipeline.tune.task import TaskConfig

if TYPE_CHECKING:
    from pipeline.checkpoint.references import PretrainedModel

Split = Literal["train", "eval"]

_PARAGRAPH = re.compile(r"\n\s*\n|[^\n]*\n[ \t]*[-=~]{3,}[ \t]*(?:\n|$)")
"""Between paragraphs: a blank line, or a heading with its underline."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*[.,;:!?]?")
_MIN_WORD_SHARE = 0.7
"""Share of a sentence's blank-separated parts that must be words; the rest may be code or numbers."""


class HeldOutTaskConfig(TaskConfig):
    """Settings that tasks on sentences from the held-out documents of a token store share."""

    evaluation_sets = ()

    store: Path
    """Directory of a committed token store."""
    held_out: float = Field(default=0.01, gt=0, lt=1)
    """Share of the documents that pre-training did not see: at most the `data.held_out` of its run."""
    train_examples: int = Field(default=1000, gt=0)
    """Training examples to make."""
    evaluation_examples: int = Field(default=1000, gt=0)
    """Evaluation examples to make, from other documents than the training examples."""
    min_words: int = Field(default=6, ge=2)
    """Words of the shortest sentence used."""
    max_words: int = Field(default=40, ge=2)
    """Words of the longest sentence used."""

    @model_validator(mode="after")
    def _words(self) -> HeldOutTaskConfig:
        if self.max_words < self.min_words:
            raise ValueError(f"max_words {self.max_words} must not be below min_words {self.min_words}")
        return self

    def check_checkpoint(self, name: str, pretrained: PretrainedModel) -> None:
        """Check that the checkpoint was not trained on the documents that the task takes as held out.

        Raises:
            MismatchError: it was; the message names the share of documents that was held out.
        """
        if pretrained.step is None:
            return
        from pipeline.checkpoint.checkpoint import read_trainer_state

        trained = read_trainer_state(pretrained.directory).identity["data"]["held_out"]
        # A smaller share holds out a subset of what a larger one does.
        if self.held_out > trained:
            raise MismatchError(
                f"The task {name} takes {self.held_out} of the documents as held out, but"
                f" {pretrained.reference} was trained on all but {trained} of them.",
                next_step=f"add tasks.{name}.held_out={trained}",
            )


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a held-out document."""

    id: str
    """`DOC_ID#NUMBER`, the number counting the document's usable sentences from 0."""
    text: str
    meta: dict[str, Any]
    """The document's `meta`."""
    draw: int
    """A uint64 hash of the id; sorting by it shuffles."""


@dataclass(frozen=True, slots=True)
class HeldOutSentences:
    """The usable sentences, shuffled, split by document, no text twice."""

    train: tuple[Sentence, ...]
    evaluation: tuple[Sentence, ...]
    inputs: tuple[InputEntry, ...]


def read_sentences(config: HeldOutTaskConfig) -> HeldOutSentences:
    """Read the held-out documents, cut them into sentences and split them by document.

    Which side a document is on, and the order of sentences, are hashes of document ids. The evaluation side
    gets its share of the documents by the configured numbers of examples. Texts that occur on both sides (as
    docstrings that are inherited do) stay on the evaluation side only.

    Raises:
        CorruptArtefactError: `config.store` is no committed token store, or is damaged.
    """
    # Opening a store imports Arrow; a configuration is validated without it.
    from data_prep.token_store import TokenStore

    store = TokenStore.open(config.store)
    evaluation_share = config.evaluation_examples / (config.train_examples + config.evaluation_examples)
    sides: dict[Split, list[Sentence]] = {"train": [], "eval": []}
    for document in store.documents(np.flatnonzero(store.held_out(config.held_out))):
        drawn = float(Noise.of("held-out-split", document.doc_id).uniform())
        side: Split = "eval" if drawn < evaluation_share else "train"
        sides[side] += _sentences_of(document.doc_id, document.text, document.meta, config)
    seen: set[str] = set()
    evaluation = tuple(_unseen(sides["eval"], seen))
    train = tuple(_unseen(sides["train"], seen))
    entry = InputEntry(kind="tokens", uri=str(config.store), fingerprint=store.fingerprint)
    return HeldOutSentences(train=train, evaluation=evaluation, inputs=(entry,))


def split_sentences(text: str) -> Iterator[str]:
    """Cut text into sentences at [.!?] before a capital; paragraphs end sentences, line ends do not.

    Underlined headings, such as `Returns` in NumPy's docstrings, are left out.
    """
    for paragraph in _PARAGRAPH.split(text):
        if words := paragraph.split():
            yield from _SENTENCE_END.split(" ".join(words))


def too_few(config: HeldOutTaskConfig, needed: str, found: str) -> ConfigError:
    """The error for a store whose held-out documents do not give the examples that are asked for."""
    return ConfigError(
        f"The held-out documents of {config.store} (held_out {config.held_out}) are too few:"
        f" {needed}, found {found}.",
        next_step="lower train_examples and evaluation_examples, or pre-train with a larger data.held_out",
    )


def _sentences_of(
    doc_id: str, text: str, meta: dict[str, Any], config: HeldOutTaskConfig
) -> Iterator[Sentence]:
    usable = (sentence for sentence in split_sentences(text) if _is_usable(sentence, config))
    for number, sentence in enumerate(usable):
        identity = f"{doc_id}#{number}"
        yield Sentence(identity, sentence, meta, int(Noise.of("held-out-order", identity).bits()))


def _is_usable(sentence: str, config: HeldOutTaskConfig) -> bool:
    """Prose, not code, tables or fragments."""
    parts = sentence.split()
    if not config.min_words <= len(parts) <= config.max_words:
        return False
    if not sentence[0].isupper() or sentence[-1] not in ".!?":
        return False
    return sum(_WORD.fullmatch(part) is not None for part in parts) >= _MIN_WORD_SHARE * len(parts)


def _unseen(sentences: list[Sentence], seen: set[str]) -> Iterator[Sentence]:
    """The sentences in hashed order, without those whose text (case aside) is in `seen`, which grows."""
    for sentence in sorted(sentences, key=lambda s: (s.draw, s.id)):
        if (text := sentence.text.lower()) not in seen:
            seen.add(text)
            yield sentence
