"""The quality rules of MassiveText (Rae et al. 2021, "Scaling Language Models", appendix A.1.1).

Words are runs of letters and digits (`words.py`); punctuation marks are none. Implementations that count them as words
find fewer words with letters, and drop more tables and lists than the appendix asks for.
"""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Literal

import numpy as np
from pydantic import Field

from data_prep.document import Document
from data_prep.filters.base import Apply, Dropped, FilterConfig, Passed
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
