"""Training a tokenizer, whatever the kind, on texts without words that are too long for a trainer: one of a million
letters would take it hours, and teach it nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import regex

from cluster.artefacts.shard_records import report_status
from cluster.shards import ShardResult
from data_prep.tokenizers import TRAINERS
from data_prep.tokenizers.config import TrainedTokenizer, WordPiece
from data_prep.tokenizers.sampling import NOTHING, Draw, drawn_texts

LETTERS_OR_DIGITS = (r"\p{L}", r"\p{N}", r"\s", r"[^\s\p{L}\p{N}]")
"""GPT-2's words (Radford et al. 2019) are runs of one of these."""
NO_PUNCTUATION = (r"[^\s\p{P}]",)
"""BERT's words are runs of this."""
NO_SPACE = (r"[!-~]", r"\s", r"(?![!-~])\p{L}", r"(?![!-~\s])\P{L}")
"""SentencePiece's words lie between spaces; letters beyond ASCII are runs for themselves, because in scripts without
spaces a word may be a paragraph."""
BETWEEN_SPACES = (r"\S",)
"""All that the cost of SentencePiece's training looks at: it grows with the square of what lies between two spaces."""
PARTS = 16
"""Parts of a long word that are trained on; more of them would teach nothing but this word."""

RUNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "byte_level_bpe": LETTERS_OR_DIGITS,
        "wordpiece": NO_PUNCTUATION,
        "sentencepiece": NO_SPACE,
    }
)
"""By trainer, kinds of characters whose runs are its words; a lexicon takes words whole."""


DrawnShard = tuple[Path, Path, Mapping[str, Draw]]
"""A document shard, its selection, and what is drawn from it by language."""


def train_tokenizer(
    drawn: Sequence[DrawnShard], wanted: TrainedTokenizer, num_threads: int, path: Path
) -> ShardResult:
    """Train on what is drawn from all document shards and write `tokenizer.json`.

    Args:
        num_threads: threads of the trainer; they do not change its result.
    """
    # Read by the thread pools of the libraries when they start.
    os.environ["RAYON_NUM_THREADS"] = str(min(num_threads, len(os.sched_getaffinity(0))))
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    counts = {"train_documents": 0, "train_bytes": 0}

    def texts() -> Iterator[str]:
        for shard in drawn:
            for text in drawn_texts(*shard):
                counts["train_documents"] += 1
                counts["train_bytes"] += len(text.encode("utf-8"))
                yield text
            report_status(path, f"read {counts['train_bytes'] / 1e6:,.1f} MB of text")
        task = f"{wanted.vocab_size:,} entries from {counts['train_bytes'] / 1e6:,.1f} MB of text"
        report_status(path, f"training {task}")

    if isinstance(wanted, WordPiece):
        languages = {lang for _, _, draws in drawn for lang, draw in draws.items() if draw != NOTHING}
        lowercase = languages <= {"en"} if wanted.lowercase == "auto" else wanted.lowercase
        if lowercase and (others := sorted(languages - {"en"})):
            report_status(
                path, f"`lowercase: true` takes accents off and Hangul apart, in {', '.join(others)} too"
            )
        wanted = wanted.model_copy(update={"lowercase": lowercase})
    trained, own_counts = TRAINERS[type(wanted)](limited(texts(), wanted), wanted)
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


def cut_long_words(
    texts: Iterable[str], runs: tuple[str, ...], max_characters: int, parts: int | None = PARTS
) -> Iterator[str]:
    """Cut longer runs into parts, keep the first `parts` of each, and end a text after every part.

    Args:
        runs: kinds of characters, as regular expressions of one character; a run is of one kind.
        parts: how many parts of a run stay; None for all.
    """
    kinds = _kinds(runs)
    for text in texts:
        start = 0
        for first, last in _long_runs(text, kinds, max_characters):
            end = last if parts is None else min(last, first + parts * max_characters)
            for place in range(first + max_characters, end, max_characters):
                yield text[start:place]
                start = place
            if end < last:
                yield text[start:end]
                start = last
        yield text[start:]


def _long_runs(text: str, kinds: np.ndarray, max_characters: int) -> Iterator[tuple[int, int]]:
    """Starts and ends of runs of more characters."""
    if len(text) > max_characters:
        own = kinds[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")]
        bounds = np.concatenate([[0], np.flatnonzero(own[1:] != own[:-1]) + 1, [len(own)]])
        for run in np.flatnonzero((np.diff(bounds) > max_characters) & (own[bounds[:-1]] > 0)).tolist():
            yield int(bounds[run]), int(bounds[run + 1])


@cache
def _kinds(runs: tuple[str, ...]) -> np.ndarray:
    """[code points] uint8: the number of each one's kind, counted from 1; 0 for characters of none."""
    # Lone surrogates are no characters; U+FFFF keeps the numbering.
    every = "".join(chr(n) if not 0xD800 <= n < 0xE000 else "\uffff" for n in range(0x110000))
    kinds = np.zeros(len(every), dtype=np.uint8)
    for number, pattern in enumerate(runs, start=1):
        for match in regex.finditer(rf"(?:{pattern})+", every):
            kinds[match.start() : match.end()] = number
    return kinds
