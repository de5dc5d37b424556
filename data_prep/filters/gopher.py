"""The rules of MassiveText (Rae et al. 2021, "Scaling Language Models", appendix A.1.1): quality, and repetition (its
table A1).

Words are runs of letters and digits (`words.py`); punctuation marks are none. Implementations that count them as words
find fewer words with letters, and drop more tables and lists than the appendix asks for.

The appendix leaves room for interpretation of repetition; the counts here are:

- A line, paragraph or n-gram is a duplicate from its second occurrence on. Blank lines are none; paragraphs lie
  between blank lines.
- The characters of lines and paragraphs are shares of all characters in lines; n-grams count the characters of
  their words, as shares of the characters of all words. A character in overlapping duplicates counts once.
- The top n-gram is the most frequent, and of those the longest; one that occurs once is no repetition.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal

import numpy as np
import regex
from pydantic import Field, field_validator

from data_prep.document import Document
from data_prep.filters.base import Apply, Dropped, FilterConfig, Passed
from data_prep.ragged import offsets_of
from data_prep.text.words import Words, code_points, lines, word_spans

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""The eight English words of the appendix."""
BULLETS = ("•", "‣", "◦", "▪", "●", "-", "–", "*")
"""Appendix A.1.1 mentions bullet points without listing them."""
_LAST_LETTER = 0x40000
"""Characters beyond are no letters."""
_SPACE, _LETTER = 1, 2
"""Kinds of characters; others are 0."""


class GopherQualityConfig(FilterConfig):
    """Limits, which are allowed values themselves; the defaults are the appendix's."""

    kind: Literal["gopher_quality"] = "gopher_quality"
    min_words: int = Field(default=50, ge=0)
    """Documents of fewer words are dropped."""
    max_words: int = Field(default=100_000, gt=0)
    """Documents of more words are dropped."""
    min_mean_word_length: float = Field(default=3.0, ge=0)
    """Characters. Where every character is a word, as in Chinese, set this to 0."""
    max_mean_word_length: float = Field(default=10.0, gt=0)
    """Characters."""
    max_symbol_ratio: float = Field(default=0.1, ge=0)
    """Hash signs per word, and ellipses per word."""
    max_bullet_lines: float = Field(default=0.9, ge=0, le=1)
    """Share of the lines that start with a bullet point."""
    max_ellipsis_lines: float = Field(default=0.3, ge=0, le=1)
    """Share of the lines that end with an ellipsis."""
    min_letter_words: float = Field(default=0.8, ge=0, le=1)
    """Share of the words that hold a letter. White space separates words here, so that a lone `|` is
    one too."""
    stop_words: tuple[str, ...] = STOP_WORDS
    """English; other languages need their own. Compared as written."""
    min_stop_words: int = Field(default=2, ge=0)
    """How many of the stop words must occur."""

    def build(self) -> Apply:
        """A filter that only looks."""
        stop_words, fewest = dict.fromkeys(self.stop_words), self.min_stop_words

        def apply(document: Document) -> Passed | Dropped:
            text = document.text
            found = word_spans(text)
            if reason := _about_words(found, self) or _about_lines(text, found.num_words, self):
                return Dropped(reason)
            points = code_points(text)
            num_runs, with_letter = letter_runs(points)
            if num_runs and with_letter / num_runs < self.min_letter_words:
                return Dropped("few_words_with_letters")
            there = (True for word in stop_words if _occurs(word, points, found))
            if sum(itertools.islice(there, fewest)) < fewest:
                return Dropped("few_stop_words")
            return Passed(document)

        return apply


def _about_words(found: Words, config: GopherQualityConfig) -> str | None:
    if found.num_words < config.min_words:
        return "few_words"
    if found.num_words > config.max_words:
        return "many_words"
    mean = int((found.ends - found.places).sum()) / max(found.num_words, 1)
    if mean < config.min_mean_word_length:
        return "short_words"
    return "long_words" if mean > config.max_mean_word_length else None


def _about_lines(text: str, num_words: int, config: GopherQualityConfig) -> str | None:
    most = config.max_symbol_ratio * num_words
    if text.count("#") > most:
        return "many_hashes"
    if text.count("...") + text.count("…") > most:
        return "many_ellipses"
    found = lines(text)
    if sum(line.startswith(BULLETS) for line in found) > config.max_bullet_lines * len(found):
        return "bullet_lines"
    if sum(line.endswith(("...", "…")) for line in found) > config.max_ellipsis_lines * len(found):
        return "ellipsis_lines"
    return None


def _occurs(word: str, points: np.ndarray, found: Words) -> bool:
    """Whether a word of a text is written like this."""
    places = found.places[found.ends - found.places == len(word)]
    for place, character in enumerate(word):
        places = places[points[places + place] == ord(character)]
    return len(places) > 0


def letter_runs(points: np.ndarray) -> tuple[int, int]:
    """(Runs of characters other than white space, such runs that hold a letter)."""
    kinds = _kinds().take(points, mode="clip")
    is_space = kinds == _SPACE
    starts = np.flatnonzero(~is_space & np.append(True, is_space)[:-1])
    most = np.maximum.reduceat(kinds, starts) if len(starts) else starts
    return len(starts), int(np.count_nonzero(most == _LETTER))


@cache
def _kinds() -> np.ndarray:
    """[code points] uint8: whether each is white space, a letter, or neither, as those beyond are."""
    kinds = np.zeros(_LAST_LETTER + 1, np.uint8)
    for kind, pattern in ((_SPACE, r"\s+"), (_LETTER, r"[^\W\d_]+")):
        for match in re.finditer(pattern, "".join(map(chr, range(_LAST_LETTER)))):
            kinds[slice(*match.span())] = kind
    return kinds


# -- repetition ----------------------------------------------------------------------------------------------

_BLANK_LINES = regex.compile(r"\n[^\S\n]*+(?:\n[^\S\n]*+)++")
"""Possessive, so that a page of blank lines is read once."""


class GopherRepetitionConfig(FilterConfig):
    """The largest shares allowed; the defaults are table A1."""

    kind: Literal["gopher_repetition"] = "gopher_repetition"
    duplicate_lines: float = Field(default=0.30, ge=0, le=1)
    """Largest share of lines that were there before."""
    duplicate_paragraphs: float = Field(default=0.30, ge=0, le=1)
    """Largest share of paragraphs that were there before."""
    duplicate_line_characters: float = Field(default=0.20, ge=0, le=1)
    """Largest share of characters in lines that were there before."""
    duplicate_paragraph_characters: float = Field(default=0.20, ge=0, le=1)
    """Largest share of characters in paragraphs that were there before."""
    top_ngram_characters: dict[int, float] = Field(default={2: 0.20, 3: 0.18, 4: 0.16})
    """For each n, the characters inside the most frequent n-gram."""
    duplicate_ngram_characters: dict[int, float] = Field(
        default={5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    )
    """For each n, the characters inside any repeated n-gram."""

    @field_validator("top_ngram_characters", "duplicate_ngram_characters")
    @classmethod
    def _sensible(cls, limits: dict[int, float]) -> dict[int, float]:
        for n, share in limits.items():
            if not (2 <= n <= 64 and 0 <= share <= 1):
                raise ValueError(f"n must be 2 to 64 and the share 0 to 1, not {n}: {share}")
        return dict(sorted(limits.items()))

    def build(self) -> Apply:
        """A filter that only looks."""

        def apply(document: Document) -> Passed | Dropped:
            for reason, share, most in _shares(document.text, self):
                if share > most:
                    return Dropped(reason)
            return Passed(document)

        return apply


def _shares(text: str, config: GopherRepetitionConfig) -> Iterator[tuple[str, float, float]]:
    """Every rule's name, what it measures and its limit; cheap rules first, so that many texts end there."""
    all_lines = lines(text)
    size = sum(map(len, all_lines))
    share, characters = duplicates(all_lines)
    yield "duplicate_lines", share, config.duplicate_lines
    yield "duplicate_line_characters", characters / max(size, 1), config.duplicate_line_characters
    # Paragraphs lie between blank lines; most texts have none, and as many lines as line breaks and one.
    text = text.strip()
    is_one = text.count("\n") + 1 == len(all_lines)
    share, characters = duplicates([text] if is_one else _BLANK_LINES.split(text))
    yield "duplicate_paragraphs", share, config.duplicate_paragraphs
    yield "duplicate_paragraph_characters", characters / max(size, 1), config.duplicate_paragraph_characters

    from data_prep.text.word_kernel import ngram_characters

    tops, repeats = config.top_ngram_characters, config.duplicate_ngram_characters
    longest = max([*tops, *repeats], default=1)
    top, repeated = np.zeros((2, longest + 1), np.int64)
    numbers, before = number_words(text)
    ngram_characters(numbers, before, top, repeated)
    size = max(int(before[-1]), 1)
    for n in sorted({*tops, *repeats}):
        if n in tops:
            yield f"top_{n}_gram", int(top[n]) / size, tops[n]
        if n in repeats:
            yield f"duplicate_{n}_grams", int(repeated[n]) / size, repeats[n]


def number_words(text: str) -> tuple[np.ndarray, np.ndarray]:
    """[words] int64 numbers, equal for words that are written alike, and [words + 1] characters of all before each."""
    from data_prep.text.word_kernel import hash_runs

    found = word_spans(text)
    hashes = np.empty(found.num_words, dtype=np.uint64)
    hash_runs(code_points(text), found.places, found.ends, hashes)
    return np.unique(hashes, return_inverse=True)[1], offsets_of(found.ends - found.places)


def duplicates(parts: Sequence[str]) -> tuple[float, int]:
    """Share of the parts that occurred before, and how many characters they have."""
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count += 1
            characters += len(part)
        else:
            seen.add(part)
    return count / max(len(parts), 1), characters
