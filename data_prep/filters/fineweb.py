"""The quality rules that FineWeb adds to Gopher's and C4's (Penedo et al. 2024, "The FineWeb Datasets", section 3.6).

The limits are the paper's; the code that the authors published uses 0.01 for the characters in duplicated
lines, and counts lines of exactly 30 characters as short.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import regex
from pydantic import Field

from data_prep.document import Document
from data_prep.filters.base import Apply, Dropped, FilterConfig, Passed
from data_prep.filters.gopher import duplicates
from data_prep.text.words import lines


class FinewebConfig(FilterConfig):
    """Limits; a document that reaches one is dropped. Lines are those that hold more than white space."""

    kind: Literal["fineweb"] = "fineweb"
    max_unpunctuated: float = Field(default=0.12, ge=0, le=1)
    """Dropped when at most this share of the lines ends with a punctuation mark that ends sentences, in any script."""
    max_duplicate_characters: float = Field(default=0.1, gt=0)
    """Dropped when at least this share of the characters is in lines that occurred before."""
    max_short_lines: float = Field(default=0.67, gt=0)
    """Dropped when at least this share of the lines is short."""
    short_line: int = Field(default=30, ge=1)
    """A line is short below this number of characters."""

    def build(self) -> Apply:
        """A filter that only looks."""
        end_marks = sentence_terminals()

        def apply(document: Document) -> Passed | Dropped:
            found = lines(document.text)
            if not found:
                return Dropped("empty")
            if sum(line[-1] in end_marks for line in found) <= self.max_unpunctuated * len(found):
                return Dropped("unpunctuated_lines")
            if sum(len(line) < self.short_line for line in found) >= self.max_short_lines * len(found):
                return Dropped("short_lines")
            size = sum(map(len, found))
            if duplicates(found)[1] >= self.max_duplicate_characters * size:
                return Dropped("duplicate_lines")
            return Passed(document)

        return apply


@cache
def sentence_terminals() -> frozenset[str]:
    """The full stops, question and exclamation marks of all scripts."""
    return frozenset(filter(regex.compile(r"\p{Sentence_Terminal}").match, map(chr, range(0x20000))))
