"""The n-grams of the evaluation texts, and finding them in other texts.

A text of at least `ngram` words gives every run of that many words. A shorter one of at least `min_words` is one
n-gram as a whole. So all n-grams have at least `min_words` words, and one hash per word of the corpus, over the
`min_words` words from it on, tells whether any n-gram can begin there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from data_prep.text.words import Words, spell, split_words

NGRAM = np.dtype([("hash", "<u8"), ("beginning", "<u8"), ("start", "<u8"), ("end", "<u8"), ("words", "<u8")])
"""`hash`: of all its words; `beginning`: of its first `min_words`; `start`, `end`: its place in the codes."""
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
            ngrams: [n-grams] NGRAM, ascending by hash.
            occurrences: [occurrences] OCCURRENCE, ascending; one for each pair of an n-gram and a text that holds it.
        """
        self.codes, self.ngrams, self.occurrences = codes, ngrams, occurrences
        self._min_words = min_words
        self._hashes = np.ascontiguousarray(ngrams["hash"])
        self._lengths = np.unique(ngrams["words"]).tolist()
        self._beginnings = np.unique(ngrams["beginning"])
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
        sums = prefix_sums(words.codes)
        every = np.zeros(len(firsts), dtype=NGRAM)
        every["hash"] = hash_runs(sums, starts, ends)
        every["beginning"] = hash_runs(sums, starts, words.starts[firsts + min_words])
        every["start"], every["end"], every["words"] = starts, ends, counts
        # Two hashes identify an n-gram: 128 bits, as for the equality of documents.
        second = hash_runs(prefix_sums(words.codes, second=True), starts, ends, second=True)
        order = np.lexsort((second, every["hash"]))
        every, second = every[order], second[order]
        is_new = np.ones(len(every), dtype=bool)
        is_new[1:] = (every["hash"][1:] != every["hash"][:-1]) | (second[1:] != second[:-1])
        pairs = np.unique(((np.cumsum(is_new) - 1) << 32) | words.text_of(firsts[order]))
        occurrences = np.empty(len(pairs), dtype=OCCURRENCE)
        occurrences["ngram"], occurrences["text"] = pairs >> 32, pairs & 0xFFFFFFFF
        return cls(words.codes, every[is_new], occurrences, min_words)

    def find(self, words: Words) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every n-gram of the index in some texts; compared word by word, so that none is there by accident.

        Returns:
            [found] int64 indices of the n-grams, [found] the first word of each, ascending, and [found] its words.
        """
        sums = prefix_sums(words.codes)
        begins = self._can_begin(words, sums)
        last_words = words.first_words[words.text_of(begins) + 1]
        ngrams, places, counts = [], [], []
        for count in self._lengths:
            firsts = begins[begins + count <= last_words]
            starts, ends = words.starts[firsts], words.starts[firsts + count]
            hashes = hash_runs(sums, starts, ends)
            low = np.searchsorted(self._hashes, hashes, side="left")
            high = np.searchsorted(self._hashes, hashes, side="right")
            for i in np.flatnonzero(high > low).tolist():
                run = words.codes[starts[i] : ends[i]].tobytes()
                for ngram in range(int(low[i]), int(high[i])):
                    if run == self.codes_of(ngram).tobytes():
                        ngrams.append(ngram)
                        places.append(int(firsts[i]))
                        counts.append(count)
        order = np.argsort(np.asarray(places, dtype=np.int64), kind="stable")
        ngrams, places, counts = (
            np.asarray(each, dtype=np.int64)[order] for each in (ngrams, places, counts)
        )
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

    def _can_begin(self, words: Words, sums: np.ndarray) -> np.ndarray:
        """Ascending indices of words that may begin an n-gram."""
        num_runs, beginnings = max(0, words.num_words - self._min_words + 1), self._beginnings
        starts = words.starts[:num_runs]
        hashes = hash_runs(sums, starts, words.starts[self._min_words : self._min_words + num_runs])
        maybe = np.flatnonzero(self._passes[_high_bits(hashes, len(self._passes))])
        # Not `np.isin`, which would sort the beginnings again for every batch.
        hashes = hashes[maybe]
        nearest = np.minimum(np.searchsorted(beginnings, hashes), max(0, len(beginnings) - 1))
        return maybe[beginnings[nearest] == hashes] if len(beginnings) else maybe[:0]


def num_ngrams(directory: Path) -> int:
    """The number of different n-grams of a saved index, which is not read."""
    return len(np.load(directory / _FILES["ngrams"], mmap_mode="r", allow_pickle=False))


def _high_bits(hashes: np.ndarray, size: int) -> np.ndarray:
    return (hashes >> np.uint64(65 - size.bit_length())).astype(np.int64)


_BASE = 0x9E3779B97F4A7C15
_SECOND_BASE = 0xD1342543DE82EF95


def prefix_sums(codes: np.ndarray, *, second: bool = False) -> np.ndarray:
    """[characters + 1] uint64 sums; `hash_runs` hashes any run of words by two look-ups in them.

    Args:
        second: give sums for another hash of the same runs, independent of the first.
    """
    sums = np.zeros(len(codes) + 1, dtype=np.uint64)
    np.multiply(codes, _powers(_SECOND_BASE if second else _BASE, len(codes)), out=sums[1:])
    return np.cumsum(sums, out=sums)


def hash_runs(sums: np.ndarray, starts: np.ndarray, ends: np.ndarray, *, second: bool = False) -> np.ndarray:
    """[n] uint64 polynomial hashes, modulo 2^64, of the characters `starts[i]` to `ends[i]`.

    The same characters have the same hash at any place (Karp and Rabin 1987, with an odd base, which has an inverse).
    Its high bits are the good ones.
    """
    base = _SECOND_BASE if second else _BASE
    inverse = _powers(pow(base, -1, 1 << 64), len(sums))
    return (sums[ends] - sums[starts]) * inverse[starts]


def _powers(base: int, count: int) -> np.ndarray:
    return _all_powers(base, 1 << max(16, count.bit_length()))[:count]


@cache
def _all_powers(base: int, count: int) -> np.ndarray:
    powers = np.full(count, base, dtype=np.uint64)
    powers[0] = 1
    return np.cumprod(powers, out=powers)


def save_array(path: Path, array: np.ndarray) -> None:
    """Write the bytes that `np.save` writes, through Python's stream.

    Raises:
        OSError: with `errno`, which identifies a full disk; `np.save` raises one without it.
    """
    with path.open("wb") as stream:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(np.ascontiguousarray(array).data)
