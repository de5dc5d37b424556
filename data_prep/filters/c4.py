"""The cleaning rules of C4 (Raffel et al. 2020, section 2.2), lines first, then the page.

The paper's numbers: lines of at least 5 words, pages of at least 3 sentences. The policy phrases and the longest word
are in the authors' code only. Different from that code: a curly bracket or "lorem ipsum" anywhere drops the page, as
the paper says, and not only in lines that are kept; a citation marker after the full stop is no reason to lose the
line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import Field

from data_prep.document import Document
from data_prep.filters.base import Apply, Dropped, FilterConfig, Passed, require_file
from data_prep.text.words import words

POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
_BRACKETS = re.compile(r"([\[\]])")
_CITATION = re.compile(r"\d*|edit|citation needed")
_CLOSING_QUOTES = '"”’»›“‘«‹」』'
"""The end quotation marks of all languages; German closes with `“`, Danish with `«`."""
_SENTENCE_END = re.compile(rf"[.!?][{_CLOSING_QUOTES}')\]]*(?=\s|$)|[。！？]")


class C4Config(FilterConfig):
    """The rules of C4 that apply."""

    kind: Literal["c4"] = "c4"
    end_marks: tuple[str, ...] = (".", "?", "!", *_CLOSING_QUOTES)
    """Lines that end otherwise, or with `...`, are removed; empty keeps them."""
    min_words_per_line: int = Field(default=5, ge=0)
    """Shorter lines are removed. White space separates words."""
    min_sentences: int = Field(default=3, ge=0)
    """Pages with fewer sentences in the lines that are left are dropped."""
    max_word_characters: int = Field(default=1000, gt=0)
    """Lines with a longer word are removed."""
    remove_citations: bool = True
    """Take out `[1]`, `[edit]` and `[citation needed]`."""
    removed_phrases: tuple[str, ...] = ("javascript", *POLICY_PHRASES)
    """Lines that hold one, in capitals or not, are removed."""
    dropped_phrases: tuple[str, ...] = ("lorem ipsum", "{")
    """Pages that hold one, in capitals or not, are dropped."""
    bad_words: Path | None = None
    """A text file with one word or phrase a line; pages that hold one are dropped. None for no such rule."""

    def build(self) -> Apply:
        """A filter that removes lines and drops pages; counts `lines_removed`.

        Raises:
            MissingInputError: the list of bad words does not exist.
        """
        bad_words: list[str] = []
        if self.bad_words is not None:
            found = require_file(self.bad_words, "bad_words").read_text(encoding="utf-8").splitlines()
            bad_words = [line for line in found if line.strip()]
        holds_bad_word = _finder(bad_words)
        line_phrases = tuple(phrase.lower() for phrase in self.removed_phrases)
        page_phrases = tuple(phrase.lower() for phrase in self.dropped_phrases)

        def problem(lowered: str) -> Dropped | None:
            if any(phrase in lowered for phrase in page_phrases):
                return Dropped("dropped_phrase")
            return Dropped("bad_word") if holds_bad_word(lowered) else None

        def apply(document: Document) -> Passed | Dropped:
            found = document.text.splitlines()
            if self.remove_citations and "[" in document.text:
                found = (without_citations(line) if "[" in line else line for line in found)
            found = [line for line in map(str.strip, found) if line]
            kept = [line for line in found if _is_prose(line, self)]
            lowered = "\n".join(found).lower()
            if phrases := [phrase for phrase in line_phrases if phrase in lowered]:
                kept = [line for line in kept if not any(phrase in line.lower() for phrase in phrases)]
            dropped = problem(lowered)
            if not dropped and len(kept) < len(found):
                # Check again: removing lines may have joined a phrase.
                dropped = problem("\n".join(kept).lower())
            if not dropped and len(kept) < self.min_sentences:
                # Every line is a sentence at least; in a line, end marks before white space count.
                ends = (
                    sum(1 for _ in islice(_SENTENCE_END.finditer(line), self.min_sentences)) for line in kept
                )
                if sum(max(1, count) for count in ends) < self.min_sentences:
                    dropped = Dropped("few_sentences")
            return dropped or Passed.with_text(
                document, "\n".join(kept), lines_removed=len(found) - len(kept)
            )

        return apply


def _is_prose(line: str, config: C4Config) -> bool:
    if config.end_marks and (not line.endswith(config.end_marks) or line.endswith("...")):
        return False
    least, longest = config.min_words_per_line, config.max_word_characters
    if least and len(line.split(None, least - 1)) < least:
        return False
    return len(line) <= longest or max(map(len, line.split())) <= longest


def without_citations(line: str) -> str:
    """The line without `[12]`, `[edit]` and `[citation needed]`; also without what becomes one by that.

    One pass with a stack, so that brackets in brackets cost no more than others.
    """
    done: list[str] = []
    opened: list[list[str]] = []
    for piece in _BRACKETS.split(line):
        if piece == "[":
            opened.append([])
        elif piece == "]" and opened and _CITATION.fullmatch("".join(opened[-1])):
            opened.pop()
        elif piece == "]":
            # Text with this bracket cannot be a marker.
            done += [part for level in opened for part in ("[", *level)] + [piece]
            opened = []
        else:
            (opened[-1] if opened else done).append(piece)
    return "".join([*done, *(part for level in opened for part in ("[", *level))])


def _finder(entries: Iterable[str]) -> Callable[[str], bool]:
    """Tells whether a lower-cased text holds an entry as whole words (in scripts without spaces, anywhere)."""
    phrases = {found: f" {' '.join(found)} " for entry in entries if (found := words(entry.lower()))}
    single = frozenset(found[0] for found in phrases if len(found) == 1)
    longer = [(found[0], spelt) for found, spelt in phrases.items() if len(found) > 1]

    def holds(lowered: str) -> bool:
        if not phrases:
            return False
        found = words(lowered)
        present = frozenset(found)
        candidates = [spelt for first, spelt in longer if first in present]
        spelt_text = f" {' '.join(found)} " if candidates else ""
        return not single.isdisjoint(present) or any(spelt in spelt_text for spelt in candidates)

    return holds
