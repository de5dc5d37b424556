"""Text as the words that decontamination compares: lower case, without punctuation, whatever the spacing.

Brown et al. 2020 (appendix C) define a gram as "a lowercase, whitespace delimited word with no punctuation". Here
punctuation ends a word like white space does, because several evaluation sets are tokenised: `it 's` and `it's` are
the same two words. Where a script has no spaces between words (Han, kana, Thai, Lao, Khmer, Burmese) every character
is a word.

Everything is arrays over the characters of many texts at once, because a corpus has as many words as it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import regex

FIRST = np.uint32(1 << 30)
"""Set in the code of a word's first character."""
_BASE = 0x9E3779B97F4A7C15
_SECOND_BASE = 0xD1342543DE82EF95
_LAST_LETTER = 0x3FFFF
"""Beyond lie private characters and tags."""
_LETTERS = regex.compile(r"[\p{L}\p{M}\p{N}--\p{Variation_Selector}]", regex.V1)
_UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&[\p{L}\p{M}\p{N}]]", regex.V1
)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of some texts, in order."""

    codes: np.ndarray
    """[characters] uint32: the folded code point of every character of a word; `FIRST` is set where one begins. Equal
    runs of words are equal arrays."""
    starts: np.ndarray
    """[words + 1] int64: word `i` is `codes[starts[i] : starts[i + 1]]`."""
    places: np.ndarray
    """[words] int64: where each word begins in its text, in characters. Its characters follow each other there."""
    first_words: np.ndarray
    """[texts + 1] int64: the words of text `t` are those from `first_words[t]` to before `first_words[t + 1]`."""

    @property
    def num_words(self) -> int:
        """Words of all texts."""
        return len(self.places)

    @property
    def counts(self) -> np.ndarray:
        """[texts] int64 words of each text."""
        return np.diff(self.first_words)

    def text_of(self, words: np.ndarray) -> np.ndarray:
        """[n] the text that each of the given words is in."""
        return np.searchsorted(self.first_words, words, side="right") - 1

    def ends(self, words: np.ndarray) -> np.ndarray:
        """[n] where each of the given words ends in its text, in characters."""
        return self.places[words] + self.starts[words + 1] - self.starts[words]


def split_words(texts: Sequence[str]) -> Words:
    """Cut texts into words."""
    joined = "\n".join(texts)
    points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    codes = np.take(_table(), points, mode="clip")
    inside = codes != 0
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    unspaced = codes >= FIRST
    if unspaced.any():
        begins |= unspaced
        begins[1:] |= inside[1:] & unspaced[:-1]
    codes |= begins.astype(np.uint32) << np.uint32(30)
    places = np.flatnonzero(begins)
    codes = np.compress(inside, codes)
    starts = np.append(np.flatnonzero(codes >= FIRST), len(codes))
    text_starts = np.cumsum([0, *(len(text) + 1 for text in texts)])
    first_words = np.searchsorted(places, text_starts)
    places = places - np.repeat(text_starts[:-1], np.diff(first_words))
    return Words(codes, starts, places, first_words)


def spell(codes: np.ndarray) -> str:
    """The words that `codes` hold, with a space between them."""
    points = codes & ~FIRST
    letters = map(chr, points.tolist())
    return "".join(
        f" {letter}" if first else letter for letter, first in zip(letters, codes >= FIRST, strict=True)
    )[1:]


def prefix_sums(codes: np.ndarray, *, second: bool = False) -> np.ndarray:
    """[characters + 1] uint64 sums of which `hash_runs` makes the hash of any run of words in two look-ups.

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


@cache
def _table() -> np.ndarray:
    """[code points] uint32: the folded character, 0 for what separates words; `FIRST` is set in unspaced scripts."""
    # Lone surrogates are no characters; U+FFFF keeps the numbering.
    every = "".join(
        chr(number) if not 0xD800 <= number < 0xE000 else "\uffff" for number in range(_LAST_LETTER + 1)
    )
    table = np.zeros(len(every), dtype=np.uint32)
    for match in _LETTERS.finditer(every):
        folded = match[0].casefold()
        table[match.start()] = ord(folded if len(folded) == 1 else match[0].lower()[0])
    unspaced = [match.start() for match in _UNSPACED.finditer(every)]
    table[unspaced] |= FIRST
    return table
