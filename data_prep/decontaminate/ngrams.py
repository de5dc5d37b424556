"""The n-grams of the evaluation texts, and finding them in other texts.

A text of at least `ngram` words gives every run of that many words. A shorter one of at least `min_words` is one
n-gram as a whole. So all n-grams have at least `min_words` words, and one hash per word of the corpus, over the
`min_words` words from it on, tells which n-grams can begin there. These are compared word by word.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from data_prep.dedup.texts import hash_windows, hash_words
from data_prep.hashing import mix
from data_prep.text.words import Words, spell, split_words

NGRAM = np.dtype([("beginning", "<u8"), ("start", "<u8"), ("end", "<u8"), ("words", "<u8")])
"""`beginning`: hash of its first `min_words` words; `start`, `end`: its place in the codes; `words`: their number."""
OCCURRENCE = np.dtype([("ngram", "<u4"), ("text", "<u4")])
"""The evaluation text `text` holds the n-gram `ngram`."""
_FILES = {"codes": "codes.npy", "ngrams": "ngrams.npy", "occurrences": "occurrences.npy"}
_FILTER_BITS = 16
"""Bits of the filter for each n-gram: 1 word in 16 that begins no n-gram passes it."""


class NgramIndex:
    """The different n-grams of some evaluation texts."""

    def __init__(
        self, codes: np.ndarray, ngrams: np.ndarray, occurrences: np.ndarray, min_words: int
    ) -> None:
        """Prepare n-grams for searching.

        Args:
            codes: [characters] uint32 words of all evaluation texts, as in `Words.codes`.
            ngrams: [n-grams] NGRAM, ascending by beginning, and the short ones before the long ones.
            occurrences: [occurrences] OCCURRENCE, ascending; one for each pair of an n-gram and a text that holds it.
        """
        self.codes, self.ngrams, self.occurrences = codes, ngrams, occurrences
        self._min_words = min_words
        self._beginnings = np.ascontiguousarray(ngrams["beginning"])
        self._places = list(zip(*(ngrams[name].tolist() for name in ("words", "start", "end")), strict=True))
        # [2^k] bool: whether any beginning's hash has these k high bits.
        self._passes = np.zeros(1 << (_FILTER_BITS * max(1, len(self._beginnings))).bit_length(), dtype=bool)
        self._passes[_high_bits(self._beginnings, len(self._passes))] = True

    @classmethod
    def build(cls, texts: Sequence[str], ngram: int, min_words: int) -> NgramIndex:
        """Index the n-grams of evaluation texts; `min_words` is at most `ngram`."""
        words = split_words(texts)
        num_words = words.counts
        num_runs = np.where(
            num_words >= ngram, num_words - ngram + 1, (num_words >= min_words).astype(np.int64)
        )
        # First word and number of words of every n-gram.
        within = np.arange(num_runs.sum()) - np.repeat(np.cumsum(num_runs) - num_runs, num_runs)
        firsts = np.repeat(words.first_words[:-1], num_runs) + within
        counts = np.repeat(np.minimum(num_words, ngram), num_runs)
        starts, ends = words.starts[firsts], words.starts[firsts + counts]
        every = np.zeros(len(firsts), dtype=NGRAM)
        every["beginning"] = _hash_beginnings(words, min_words)[0][firsts]
        every["start"], every["end"], every["words"] = starts, ends, counts
        data = memoryview(words.codes.tobytes())
        places = zip((4 * starts).tolist(), (4 * ends).tolist(), strict=True)
        digests = b"".join(xxhash.xxh3_128_digest(data[start:end]) for start, end in places)
        # 128 bits identify an n-gram, as they do a document.
        _, first, same = np.unique(
            np.frombuffer(digests, dtype=[("high", "<u8"), ("low", "<u8")]),
            return_index=True,
            return_inverse=True,
        )
        order = np.lexsort((counts[first], every["beginning"][first]))
        numbers = np.empty_like(order)
        numbers[order] = np.arange(len(order))
        pairs = np.unique((numbers[same] << 32) | words.text_of(firsts))
        occurrences = np.empty(len(pairs), dtype=OCCURRENCE)
        occurrences["ngram"], occurrences["text"] = pairs >> 32, pairs & 0xFFFFFFFF
        return cls(words.codes, every[first[order]], occurrences, min_words)

    def find(self, words: Words) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every n-gram of the index in some texts; compared word by word, so that none is there by accident.

        Returns:
            [found] int64 indices of the n-grams, [found] the first word of each, ascending, and [found] its words.
        """
        hashes, following = _hash_beginnings(words, self._min_words)
        maybe = np.flatnonzero(self._passes[_high_bits(hashes, len(self._passes))])
        low = np.searchsorted(self._beginnings, hashes[maybe], side="left")
        high = np.searchsorted(self._beginnings, hashes[maybe], side="right")
        is_one = np.flatnonzero(high > low)
        candidates = zip(*(each[is_one].tolist() for each in (maybe, low, high)), strict=True)
        found = []
        for place, first, last in candidates:
            for ngram in range(first, last):
                count, start, end = self._places[ngram]
                if count <= following[place]:
                    run = words.codes[words.starts[place] : words.starts[place + count]]
                    if np.array_equal(run, self.codes[start:end]):
                        found.append((ngram, place, count))
        ngrams, places, counts = np.array(found, dtype=np.int64).reshape(-1, 3).T
        return ngrams, places, counts

    def codes_of(self, ngram: int) -> np.ndarray:
        """[characters] uint32 the words of an n-gram."""
        found = self.ngrams[ngram]
        return self.codes[int(found["start"]) : int(found["end"])]

    def spell(self, ngram: int) -> str:
        """An n-gram for people: its words with a space between them."""
        return spell(self.codes_of(ngram))

    def save(self, directory: Path) -> None:
        """Write the arrays into a directory; the same n-grams give the same bytes."""
        for name, file in _FILES.items():
            save_array(directory / file, getattr(self, name))

    @classmethod
    def load(cls, directory: Path, min_words: int) -> NgramIndex:
        """Read what `save` wrote."""
        arrays = {name: np.load(directory / file, allow_pickle=False) for name, file in _FILES.items()}
        return cls(**arrays, min_words=min_words)


def num_ngrams(directory: Path) -> int:
    """The number of different n-grams of a saved index, which is not read."""
    return len(np.load(directory / _FILES["ngrams"], mmap_mode="r", allow_pickle=False))


def _high_bits(hashes: np.ndarray, size: int) -> np.ndarray:
    return (hashes >> np.uint64(65 - size.bit_length())).astype(np.int64)


def _hash_beginnings(words: Words, min_words: int) -> tuple[np.ndarray, np.ndarray]:
    """[words] uint64 hashes of the `min_words` words from each on, and [words] int64 words of its text from each on."""
    sums, following = hash_windows(hash_words(words), min_words)
    return mix(sums), following


def save_array(path: Path, array: np.ndarray) -> None:
    """Write the bytes that `np.save` writes, through Python's stream.

    Raises:
        OSError: with `errno`, which identifies a full disk; `np.save` raises one without it.
    """
    with path.open("wb") as stream:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(np.ascontiguousarray(array).data)
