"""Training a tokenizer: the body of the task, whatever the kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cluster.artefacts.shard_log import report_status
from cluster.shards import ShardResult
from data_prep.tokenizers import byte_level_bpe, sentencepiece_training, word_lexicon, wordpiece
from data_prep.tokenizers.config import TrainedTokenizer, WordPiece
from data_prep.tokenizers.long_words import (
    BETWEEN_SPACES,
    LETTERS_OR_DIGITS,
    NO_PUNCTUATION,
    NO_SPACE,
    cut_long_words,
)
from data_prep.tokenizers.sampling import NOTHING, Draw, drawn_texts

Train = Callable[[Iterable[str], Any], tuple[str, Mapping[str, int]]]
"""Trains on texts with the kind's settings and returns the `tokenizer.json`, for which the same texts give the same
bytes, and counts for the statistics."""


def _uncounted(train: Callable[[Iterable[str], Any], str]) -> Train:
    return lambda texts, config: (train(texts, config), {})


TRAINERS: Mapping[str, Train] = MappingProxyType(
    {
        "byte_level_bpe": _uncounted(byte_level_bpe.train),
        "wordpiece": _uncounted(wordpiece.train),
        "sentencepiece": sentencepiece_training.train_and_check,
        "word_lexicon": _uncounted(word_lexicon.train),
    }
)
"""Trainers, by kind of tokenizer."""


RUNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "byte_level_bpe": LETTERS_OR_DIGITS,
        "wordpiece": NO_PUNCTUATION,
        "sentencepiece": NO_SPACE,
    }
)
"""Kinds of characters of which the words of each kind of trainer are runs; a lexicon takes words whole."""


@dataclass(frozen=True, slots=True)
class TrainingShard:
    """One document shard and the sample drawn from it."""

    documents: Path
    selection: Path
    draws: Mapping[str, Draw]
    """By language."""


@dataclass(frozen=True, slots=True)
class TrainingSplit:
    """The input of training: the samples of all document shards, and the settings."""

    shards: tuple[TrainingShard, ...]
    config: TrainedTokenizer
    num_threads: int
    """Threads of the trainer; they do not change its result."""


def train_tokenizer(split: TrainingSplit, path: Path) -> ShardResult:
    """Train on the drawn documents and write `tokenizer.json`."""
    # Read by the thread pools of the libraries when they start.
    os.environ["RAYON_NUM_THREADS"] = str(min(split.num_threads, len(os.sched_getaffinity(0))))
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    counts = {"train_documents": 0, "train_bytes": 0}
    wanted = split.config

    def texts() -> Iterator[str]:
        for shard in split.shards:
            for text in drawn_texts(shard.documents, shard.selection, shard.draws):
                counts["train_documents"] += 1
                counts["train_bytes"] += len(text.encode("utf-8"))
                yield text
            report_status(path, f"read {counts['train_bytes'] / 1e6:,.1f} MB of text")
        task = f"{wanted.vocab_size:,} entries from {counts['train_bytes'] / 1e6:,.1f} MB of text"
        report_status(path, f"training {task}")

    if isinstance(wanted, WordPiece):
        languages = {lang for shard in split.shards for lang, draw in shard.draws.items() if draw != NOTHING}
        lowercase = languages <= {"en"} if wanted.lowercase == "auto" else wanted.lowercase
        if lowercase and (others := sorted(languages - {"en"})):
            report_status(
                path, f"`lowercase: true` takes accents off and Hangul apart, in {', '.join(others)} too"
            )
        wanted = wanted.model_copy(update={"lowercase": lowercase})
    trained, own_counts = TRAINERS[wanted.kind](limited(texts(), wanted), wanted)
    path.write_text(trained, encoding="utf-8")
    return ShardResult(rows=1, stats={**counts, **own_counts})


def limited(texts: Iterable[str], wanted: TrainedTokenizer) -> Iterator[str]:
    """The texts as the trainer of the kind gets them: without words that are too long for it."""
    runs = RUNS.get(wanted.kind)
    if runs is None:
        return iter(texts)
    limit = wanted.max_word_characters
    cut = cut_long_words(texts, runs, limit)
    # Paragraphs of scripts without spaces are text to learn from: all their parts stay.
    return cut_long_words(cut, BETWEEN_SPACES, limit, parts=None) if runs is NO_SPACE else cut
