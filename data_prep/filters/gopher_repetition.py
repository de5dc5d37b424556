"""The repetition rules of MassiveText (Rae et al. 2021, "Scaling Language Models", appendix A.1.1, table A1).

The appendix leaves room for interpretation; the counts here are:

- A line, paragraph or n-gram is a duplicate from its second occurrence on. Blank lines are none; paragraphs lie
  between blank lines.
- The characters of lines and paragraphs are shares of all characters in lines; n-grams count the characters of
  their words, as shares of the characters of all words. A character in overlapping duplicates counts once.
- The top n-gram is the most frequent, and of those the longest; one that occurs once is no repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import regex
from pydantic import Field, field_validator

from data_prep.document import Document
from data_prep.filters.base import Apply, Dropped, FilterConfig, Passed
from data_prep.text.words import code_points, lines, word_spans

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
    before = np.concatenate([[0], np.cumsum(found.ends - found.places)])
    return np.unique(hashes, return_inverse=True)[1], before


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
