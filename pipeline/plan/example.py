"""An example micro-batch of random tokens in the shapes that a run's objective makes, for planning without data.

Rows are laid out as packing does: pieces of text that fill the row, or a pair and its padding. The tokens are drawn at
random, the corruption is the objective's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cluster.artefacts.errors import ClozeError
from cluster.copies import committed_at, manifest_at
from data_prep.layout import TOKENS
from pipeline.objectives import OBJECTIVES
from pipeline.objectives.base import Batch
from pipeline.objectives.vocabulary import Vocabulary
from pipeline.run.config import PretrainConfig
from pipeline.samples.noise import Noise
from pipeline.samples.packed import PAIR_FORMATS, Packed

PIECES_PER_ROW = 4
"""Documents that are taken to share a row."""
TOKENS_PER_SENTENCE = 24
_ROLES = ("bos", "pad", "eos", "unk", "mask")
_ASSUMED_VOCABULARY = {"encoder": 30_522, "decoder": 50_257, "encoder_decoder": 32_128, "elmo": 100_000}
"""Assumed size of the vocabulary by kind of network, if neither tokens nor the configuration give it: BERT's, GPT-2's
and T5's, and a usual one for ELMo."""
_WORDS = 4_000
"""Words of the lexicon that ELMo's example is spelled with."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The vocabulary, and how sure its size is."""

    vocabulary: Vocabulary
    note: str
    """Empty if the size comes from the prepared tokens."""


def reader_of(config: PretrainConfig, vocab_size: int | None = None) -> Reader:
    """The vocabulary of the run's tokens; where they are not prepared yet, one of the configured or of a usual size.

    Args:
        vocab_size: entries that the configuration of the tokens asks for, where it is known.
    """
    try:
        from data_prep.token_store import TokenStore
        from pipeline.run.inputs import open_vocabulary

        if (size := _size_elsewhere(config)) is not None:
            return Reader(_invented(config, size), "")
        stores = [TokenStore.open(store.path, verify=False) for store in config.data.stores]
        return Reader(open_vocabulary(config, stores), "")
    except (ClozeError, OSError):
        size, note = config.model.vocab_size, ""
        if size is None:
            source = (
                "a usual size of the vocabulary" if vocab_size is None else "the size that they will have"
            )
            note = f"the tokens are not there: {source} is taken"
            size = vocab_size or _ASSUMED_VOCABULARY[config.model.network]
        return Reader(_invented(config, size), note)


def _size_elsewhere(config: PretrainConfig) -> int | None:
    """Size of the vocabulary of tokens at a URI, which a plan does not fetch, with the tokens of the objective; None
    where all stores are directories."""
    places = [committed_at(store.path, TOKENS) for store in config.data.stores if isinstance(store.path, str)]
    sizes = [found.config["vocab_size"] for place in places if (found := manifest_at(place))]
    if not sizes:
        return None
    extra = OBJECTIVES[config.objective.kind].extra_tokens(config.objective, ["en"])
    return config.model.vocab_size or max(sizes) + len(extra)


def _invented(config: PretrainConfig, size: int) -> Vocabulary:
    """A vocabulary of `size` ids without texts."""
    extra = OBJECTIVES[config.objective.kind].extra_tokens(config.objective, ["en"])
    names = [*_ROLES, *(text for text in extra if text not in ("<mask>", "<pad>"))]
    size = max(size, len(names) + 64)
    is_special = np.zeros(size, dtype=bool)
    is_special[: len(names)] = True
    return Vocabulary(
        size=size,
        roles={name: number for number, name in enumerate(names)},
        is_special=is_special,
        starts_word=np.ones(size, dtype=bool),
        tokenizer_json="{}",
    )


def example_batch(config: PretrainConfig, vocabulary: Vocabulary, rows: int, sequence_length: int) -> Batch:
    """The objective's arguments for the network, for `rows` samples of a phase with this sequence length."""
    packed = _packed(config, vocabulary, rows, sequence_length)
    settings, noise = config.objective, Noise.of("plan", 0)
    if settings.kind == "bilm":
        vocabulary = replace(vocabulary, tokenizer_json=_lexicon())
    return OBJECTIVES[settings.kind].corrupt(packed, noise, settings, vocabulary)


def _packed(config: PretrainConfig, vocabulary: Vocabulary, rows: int, sequence_length: int) -> Packed:
    wanted = config.reading_at(sequence_length)
    length = wanted.length
    random = np.random.Generator(np.random.Philox(0))
    pair = wanted.relation is not None or config.format in PAIR_FORMATS
    ids = _texts(config, vocabulary, random, (rows, length))
    starts = _piece_starts(config, length, pair)
    for start in starts:
        ids[:, start] = vocabulary["bos"]
        ids[:, start - 1] = vocabulary["eos"]
    optional: dict[str, Any] = {}
    if pair:
        ids[:, starts[-1] :] = vocabulary["pad"]
        halves = (np.arange(length) >= length // 2).astype(np.uint8)
        optional["segment_ids"] = np.tile(halves, (rows, 1))
        optional["pair_labels"] = np.arange(rows, dtype=np.int64) % 2
    if wanted.sentence_starts:
        sentences = np.unique(np.concatenate([starts + 1, np.arange(2, length - 1, TOKENS_PER_SENTENCE)]))
        optional["sentence_starts"] = _in_all_rows(sentences, rows, length)
    if wanted.langs:
        optional["langs"] = np.zeros(rows, dtype=np.int64)
    whole_rows = config.batch.attention == "full" or len(starts) == 1
    boundaries = np.zeros(1, dtype=np.int64) if whole_rows else starts
    return Packed(
        input_ids=ids,
        cu_seqlens=np.append(_in_all_rows(boundaries, rows, length), np.int32(rows * length)),
        sample_ids=np.arange(rows, dtype=np.uint64),
        epochs=np.zeros(rows, dtype=np.uint64),
        **optional,
    )


def _piece_starts(config: PretrainConfig, length: int, pair: bool) -> np.ndarray:
    """int64 columns where pieces begin."""
    if pair:
        return np.asarray([0, max(1, length - length // 16)])
    count = max(1, min(PIECES_PER_ROW, length // 8))
    return np.arange(count) * length // count


def _in_all_rows(columns: np.ndarray, rows: int, length: int) -> np.ndarray:
    return (np.arange(rows)[:, None] * length + columns[None, :]).reshape(-1).astype(np.int32)


def _texts(
    config: PretrainConfig, vocabulary: Vocabulary, random: np.random.Generator, shape: tuple[int, int]
) -> np.ndarray:
    """Ids of ordinary tokens; of words as frequent as in texts where each is computed once (Zipf)."""
    if config.objective.kind == "bilm":
        ranks = np.exp(random.random(shape) * np.log(_WORDS)).astype(np.int64)
        return _FIRST_WORD + np.minimum(ranks, _WORDS - 1)
    return vocabulary.ordinary[random.integers(0, len(vocabulary.ordinary), shape)].astype(np.int64)


_FIRST_WORD = 5 + 2 * 256
"""A lexicon begins with special tokens and bytes."""


@lru_cache(maxsize=1)
def _lexicon() -> str:
    """A `tokenizer.json` of invented words."""
    from data_prep.tokenizers.word_lexicon import assemble

    letters = "etaoinshrdlu"
    words = [
        "".join(letters[number // len(letters) ** place % len(letters)] for place in range(5))
        for number in range(_WORDS)
    ]
    return assemble(words).to_str()
