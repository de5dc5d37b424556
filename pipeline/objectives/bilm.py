"""The bidirectional language model of ELMo: each word from those before it, and from those after it.

Peters et al. 2018, section 3.1.

A sentence `<s> w1 ... wn </s>` gives n + 1 predictions in each direction: from the left w1 ... wn and `</s>`, from the
right wn ... w1 and `<s>`. Words are read by their characters. The target is the word if the lexicon has it, and
`<unk>` if it is spelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from cluster.artefacts.errors import ConfigError, MismatchError
from data_prep.ragged import Ragged
from data_prep.tokenizers.word_lexicon import Lexicon
from models.elmo.config import PADDING, SENTENCE_BEGIN, SENTENCE_END, SHIFT, WORD_BEGIN, WORD_END, ElmoConfig
from pipeline.objectives.base import Batch, Objective, OutsideModels, Term
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.samples.formats import Format
from pipeline.samples.noise import Noise
from pipeline.samples.packed import Packed, Reading

if TYPE_CHECKING:
    from torch import nn

    from models.config import NetworkConfig

FORMATS: tuple[Format, ...] = ("sentences", "doc_sentences", "full_sentences", "contiguous", "best_fit")


class BidirectionalLM(Objective):
    """The biLM objective."""

    NETWORKS = ("elmo",)

    kind: Literal["bilm"] = "bilm"
    num_negatives: int | None = Field(default=None, gt=0)
    """Words that each training micro-batch draws, log-uniformly by rank, to represent all others in the softmax;
    null computes the full softmax. The paper draws 8,192. Evaluation is always over all words."""
    max_characters: int = Field(default=50, ge=3)
    """Characters of a word, with the marks of its begin and end; the same as in the network."""

    def reading(self, sequence_length: int) -> Reading:
        """Single sentences, as in the paper, or any other text."""
        return Reading(formats=FORMATS, length=sequence_length)

    def corrupt(self, packed: Packed, noise: Noise, vocabulary: Vocabulary) -> Batch:
        """Spell words and look up the targets; nothing is hidden.

        Only the words of the sampled softmax are drawn at random. As in the released code a micro-batch shares them,
        keyed by its first sample.

        Returns:
            The arguments of `ElmoLanguageModel.forward`: `characters` [distinct words, max_characters] int64; `words`,
            `word_ids` [words] int64; `cu_seqlens` [pieces + 1] int32, in words; `predicted_positions` [predicted]
            int64; and with a sampled softmax `log_counts` [words] float32, `negatives` [drawn] int64,
            `negative_log_counts` [drawn] float32. Padding is left out.

        Raises:
            MismatchError: the tokens are not words of a lexicon.
            ConfigError: more than half of the vocabulary would be drawn.
        """
        lexicon, ranking = _read_lexicon(vocabulary)
        ids = packed.input_ids.reshape(-1).astype(np.int64)
        starts = lexicon.word_starts(ids)
        present = np.flatnonzero(ids[starts] != vocabulary["pad"])
        piece_of = np.searchsorted(packed.cu_seqlens, starts[present], side="right") - 1
        lengths = np.bincount(piece_of)
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths[lengths > 0])]).astype(np.int32)
        word_ids = lexicon.word_ids(ids, vocabulary["unk"])[present]
        spelled = characters_of(lexicon.spell(ids).take(present), self.max_characters)
        first_ids = ids[starts[present]]
        # If a row begins inside a spelled word, the rest of that word is left out.
        word_ids[first_ids == vocabulary["bos"]] = vocabulary["bos"]
        _mark(spelled, first_ids == vocabulary["bos"], SENTENCE_BEGIN)
        _mark(spelled, first_ids == vocabulary["eos"], SENTENCE_END)
        # Each distinct word once, and which of them every word is.
        rows = np.ascontiguousarray(spelled).view(np.dtype((np.void, spelled.strides[0]))).ravel()
        _, first, words = np.unique(rows, return_index=True, return_inverse=True)
        predicted_positions = np.setdiff1d(np.arange(len(word_ids)), cu_seqlens[1:] - 1, assume_unique=True)
        inputs = {
            "characters": spelled[first].astype(np.int64),
            "words": words.astype(np.int64),
            "cu_seqlens": cu_seqlens,
            "word_ids": word_ids,
            "predicted_positions": predicted_positions,
        }
        if self.num_negatives is not None:
            here = noise.at("bilm", packed.epochs[0], packed.sample_ids[0])
            inputs |= _negatives(here, self.num_negatives, ranking, word_ids)
        counts = {"forward": len(predicted_positions), "backward": len(predicted_positions)}
        # The forward direction predicts the word after the position.
        return Batch(inputs, counts, packed.sources_at(starts[present][predicted_positions + 1]))

    def terms(self) -> Mapping[str, Term]:
        """The loss is the mean of both directions."""
        return dict.fromkeys(("forward", "backward"), Term(0.5, is_likelihood=True))

    def build_model(self, config: NetworkConfig, outside: OutsideModels) -> nn.Module:
        """The biLM with its softmax.

        Raises:
            ConfigError: the network is another kind, or reads another number of characters.
        """
        from models.elmo.language_model import ElmoLanguageModel

        return ElmoLanguageModel(self._require_characters(config))

    def check_fit(self, config: NetworkConfig, vocabulary: Vocabulary, outside: OutsideModels) -> None:
        """Make sure, before anything is started, that the tokens are words, and enough of them for `num_negatives`."""
        self._require_characters(config)
        _, (by_rank, _) = _read_lexicon(vocabulary)
        if self.num_negatives is not None:
            _require_words(self.num_negatives, len(by_rank))

    def _require_characters(self, config: NetworkConfig) -> ElmoConfig:
        if not isinstance(config, ElmoConfig):
            raise ConfigError(
                f"objective.kind bilm trains a network of kind elmo, not {config.network}.",
                next_step="set model.network=elmo",
            )
        if self.max_characters != config.max_characters:
            raise ConfigError(
                f"objective.max_characters is {self.max_characters}, but model.max_characters is"
                f" {config.max_characters}.",
                next_step=f"set objective.max_characters={config.max_characters}",
            )
        return config


def characters_of(words: Ragged, max_characters: int) -> np.ndarray:
    """[words, max_characters] uint16 ids of words given as bytes; `models.elmo.config.spell` for many at once."""
    lengths = np.minimum(words.lengths, max_characters - 2)
    characters = np.full((len(words), max_characters), PADDING, dtype=np.uint16)
    characters[:, 0] = WORD_BEGIN
    rows = words.row_of
    columns = np.arange(len(rows)) - words.offsets[rows]
    kept = columns < max_characters - 2
    characters[rows[kept], columns[kept] + 1] = words.values[kept].astype(np.uint16) + SHIFT
    characters[np.arange(len(words)), lengths + 1] = WORD_END
    return characters


def log_uniform(ranks: np.ndarray, num_words: int) -> np.ndarray:
    """float64 probabilities of ranks: log((r + 2) / (r + 1)) / log(n + 1), which falls about as word frequencies do
    (Zipf's law)."""
    return np.log1p(1.0 / (ranks + 1.0)) / np.log(num_words + 1.0)


def draw_distinct(noise: Noise, number: int, num_words: int) -> tuple[np.ndarray, int]:
    """Draw ranks log-uniformly until `number` distinct ones are found.

    Args:
        noise: scalar; draw `k` is keyed by k.
        number: at most half of `num_words`.

    Returns:
        [number] int64, and how many draws it took.
    """
    size = 2 * number
    while True:
        share = noise.at(np.arange(size, dtype=np.uint64)).uniform()
        # The inverse of the distribution function log(r + 1) / log(n + 1), taken down to a whole number.
        ranks = np.exp(share * np.log(num_words + 1.0)).astype(np.int64) - 1
        np.clip(ranks, 0, num_words - 1, out=ranks)
        first = np.sort(np.unique(ranks, return_index=True)[1])[:number]
        if len(first) == number:
            return ranks[first], int(first[-1]) + 1
        size *= 2


def _negatives(noise: Noise, number: int, ranking: Ranking, word_ids: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of the sampled softmax."""
    by_rank, rank_of = ranking
    num_words = len(by_rank)
    _require_words(number, num_words)
    drawn, num_tries = draw_distinct(noise, number, num_words)

    def log_counts(ranks: np.ndarray) -> np.ndarray:
        # A word is among the distinct ones unless every try missed it.
        missed = num_tries * np.log1p(-log_uniform(ranks, num_words))
        return np.log(-np.expm1(missed)).astype(np.float32)

    return {
        "log_counts": log_counts(rank_of[word_ids]),
        "negatives": by_rank[drawn],
        "negative_log_counts": log_counts(drawn),
    }


def _require_words(number: int, num_words: int) -> None:
    if 2 * number > num_words:
        raise ConfigError(
            f"objective.num_negatives {number} is more than half of the vocabulary of {num_words} words.",
            next_step=f"set it to {num_words // 2} or less, or to null for the full softmax",
        )


Ranking = tuple[np.ndarray, np.ndarray]
"""The rows of the softmax by rank, and the rank of each row, both [vocabulary] int64: low ranks are drawn often."""


@lru_cache(maxsize=4)
def _read_lexicon(vocabulary: Vocabulary) -> tuple[Lexicon, Ranking]:
    """The lexicon, and the order of its words by frequency.

    A lexicon is sorted by frequency; before its words come the marks of a sentence, `<unk>`, and words of one byte,
    most of them frequent. Ids that no text has as a word come last, so that they too learn to be improbable.
    """
    try:
        lexicon = Lexicon.read(vocabulary.tokenizer_json)
    except (ValueError, KeyError) as error:
        raise MismatchError(
            "The biLM reads words by their characters, but the tokens are not words of a lexicon.",
            next_step="prepare them with tokenizer.kind: word_lexicon (configs/data/wikipedia-books-words.yaml does)",
        ) from error
    alone = np.flatnonzero(~lexicon.continues)
    is_word = np.zeros(vocabulary.size, dtype=bool)
    is_word[alone] = lexicon.word_ids(alone, -1) == alone
    is_word &= ~vocabulary.is_special
    is_word[[vocabulary["bos"], vocabulary["eos"], vocabulary["unk"]]] = True
    by_rank = np.concatenate([np.flatnonzero(is_word), np.flatnonzero(~is_word)])
    rank_of = np.empty_like(by_rank)
    rank_of[by_rank] = np.arange(len(by_rank))
    return lexicon, (by_rank, rank_of)


def _mark(characters: np.ndarray, where: np.ndarray, mark: int) -> None:
    """Spell words in place as the mark of a sentence's begin or end."""
    characters[where, 1:] = PADDING
    characters[where, 1:3] = mark, WORD_END
