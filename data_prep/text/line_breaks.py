"""Line breaks that come from wrapping and those that were set on purpose, inferred from the text itself.

A break in the middle of a sentence, where the next line begins with a small letter, comes from wrapping. How many of
them do so depends on the language and not on the layout. So the share of such breaks among all of one layout (lines of
these lengths) shows how many breaks of that layout come from wrapping (Elkan and Noto 2008, "Learning classifiers from
only positive and unlabeled data", section 2: the labelled positives are selected at random). That needs no notion of
a page's width: lines of two widths, or lines that were wrapped twice, are layouts like others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import regex

from data_prep.text.words import UNSPACED

QUOTES = " \"'_*“”‘’«»„(—-–[]"
"""Characters before the first letter of a sentence or verse."""
NO_SPACE = rf"[{UNSPACED}\u3000-\u303f\u30fb\uff00-\uffef]"
"""Scripts without spaces between words, and their punctuation."""
_PARAGRAPH_INDENT = "\u3000"
UNEVEN = 4.5
"""Characters that the longest lines have more than full ones."""
_HYPHENS = "-\u00ad\u2010"
_OPENING = "\"'“‘«»„—-–「『¿¡"
_ENDINGS = ".!?:…;。！？：；」』।۔؟"
_CLOSING = " \"'_*”’»«“)]"
_UNSPACED_START = regex.compile(NO_SPACE)
_LEAST_SHARE, _LEAST_FULL, _LEAST_COUNTED = 0.25, 0.35, 3
"""Thresholds of a wrapped text: the least share of full lines whose sentence continues (with the last number added to
all full lines), and of lines with a continuing sentence that are full, because word lists begin with small letters."""
_LEAST_OF_ALL = 0.05
"""Least share of all lines with a sentence that continues on the next line."""
_FULL = 0.85
_MOST_PAUSES, _USUAL_PAUSES = 0.4, 1.0
"""Most of the lines that end within a sentence and may end with a comma or dash: lines of verse do so, whatever they
begin with. As many are taken to in `_USUAL_WEIGHT` lines of prose."""
_LEAST_WIDTH = 16
"""Narrower lines (characters) are verse or lists, whatever they begin with."""
_USUAL_SHARE, _USUAL_WEIGHT = 0.65, 10
_RULE_WEIGHT, _LENGTH_WEIGHT = 40, 30
"""Breaks that the guess by fewer features counts for, beside those that were seen."""
_LONG = 1000
"""Lines of more characters are all alike."""
_PREVIOUS_CLASS, _REACH_CLASS = 6, 4
"""Characters of a line that are compared where two lines are looked at."""
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a text that are not blank."""

    texts: list[str]
    """Without white space around them."""
    blanks: np.ndarray
    """[lines] int64: blank lines before each; an ideographic space, which begins paragraphs, counts for one."""
    indents: np.ndarray
    """[lines] int64: white space that each begins with, in characters."""

    def spaced_by(self, blanks: int) -> Lines:
        """A copy with so many blank lines fewer between the lines."""
        return Lines(self.texts, np.maximum(self.blanks - blanks, 0), self.indents)


@dataclass(frozen=True, slots=True)
class Breaks:
    """Facts about the breaks between a text's lines; one for each line but the last, about the break after it."""

    continues: np.ndarray
    """[lines - 1] bool: it is inside a sentence."""
    pauses: np.ndarray
    """[lines - 1] bool: a punctuation mark precedes it."""
    length: np.ndarray
    """[lines - 1] int64: characters of the line ahead of it."""
    reach: np.ndarray
    """[lines - 1] int64: how long that line would be with the first word of the next."""


def read_lines(text: str) -> Lines:
    """The lines of clean text."""
    texts, blanks, indents, gap = [], [], [], 0
    for line in text.split("\n"):
        bare = line.strip()
        if bare:
            texts.append(bare)
            blanks.append(gap or int(line[0] == _PARAGRAPH_INDENT))
            indents.append(len(line) - len(line.lstrip()))
        gap = 0 if bare else gap + 1
    return Lines(texts, np.array(blanks, dtype=np.int64), np.array(indents, dtype=np.int64))


def breaks_of(texts: list[str]) -> Breaks:
    """The breaks between lines that follow one another."""
    pairs = list(itertools.pairwise(texts))
    continues = np.array([continues_in(line, following) for line, following in pairs], dtype=bool)
    length = np.array([len(line) for line, _ in pairs], dtype=np.int64)
    first = np.array(
        [
            2 if _UNSPACED_START.match(following) else 1 + len(following.split(" ", 1)[0])
            for _, following in pairs
        ],
        dtype=np.int64,
    )
    pauses = np.array([not (line[-1].isalnum() or line[-1] in _HYPHENS) for line, _ in pairs], dtype=bool)
    return Breaks(continues, pauses, length, length + first)


def continues_in(line: str, following: str) -> bool:
    """Whether a sentence of a line continues on the next one; in scripts without small letters, whether the line ends
    with a letter."""
    first = following.lstrip(QUOTES)[:1]
    if first.islower():
        return True
    return first.isalpha() and not first.isupper() and line[-1].isalpha()


def width_of(lengths: np.ndarray) -> int:
    """The length that at most one line in twenty exceeds."""
    return int(np.sort(lengths)[len(lengths) * 19 // 20]) if len(lengths) else 0


def come_from_wrapping(breaks: Breaks, chosen: np.ndarray) -> bool:
    """Whether the chosen breaks, a [lines - 1] bool array, come mostly from wrapping."""
    continues = chosen & breaks.continues
    full = chosen & (breaks.reach > _FULL * (width := width_of(breaks.length[chosen])))
    count, num_full, num_both = (int(np.count_nonzero(each)) for each in (continues, full, continues & full))
    paused = (int(np.count_nonzero(breaks.pauses[continues])) + _USUAL_PAUSES) / (count + _USUAL_WEIGHT)
    return (
        width >= _LEAST_WIDTH
        and num_both >= max(1, _LEAST_SHARE * (num_full + _LEAST_COUNTED), _LEAST_FULL * count)
        and count >= _LEAST_OF_ALL * int(np.count_nonzero(chosen))
        and paused < _MOST_PAUSES
    )


def wrap_chances(breaks: Breaks, together: np.ndarray) -> np.ndarray:
    """How likely each break comes from wrapping, by the layout alone.

    Args:
        together: [lines - 1] bool, whether the break has no blank line.

    Returns:
        [lines - 1] float64 in (0, 1).
    """
    chances = np.full(len(together), 0.01)
    if not together.any():
        return chances
    lengths, reach = np.minimum(breaks.length, _LONG), np.minimum(breaks.reach, _LONG)[together]
    length, continues = lengths[together], breaks.continues[together]
    by_rule = 1 / (1 + np.exp(-np.clip(reach - (width_of(length) - UNEVEN), -30, 30)))
    full = by_rule > 0.5
    share = (continues[full].sum() + _USUAL_SHARE * _USUAL_WEIGHT) / (full.sum() + _USUAL_WEIGHT)
    by_reach = _estimate(reach, continues / share, by_rule, _RULE_WEIGHT, spread=2)
    before = np.where(np.append(False, together[:-1]), np.append(0, lengths[:-1]), 0)[together]
    both = before // _PREVIOUS_CLASS * (1 + reach.max() // _REACH_CLASS) + reach // _REACH_CLASS
    _, both = np.unique(both, return_inverse=True)
    chances[together] = _estimate(both, continues / share, by_reach, _LENGTH_WEIGHT, spread=0)
    return chances


def are_set(texts: list[str], breaks: Breaks, chances: np.ndarray) -> np.ndarray:
    """Return which breaks of a text were set on purpose, by the layout and by the text around each.

    What ends and opens sentences around breaks of either kind is learned from the text, in a few rounds of
    expectation maximisation.

    Args:
        chances: [lines - 1] that a break comes from wrapping, by the layout.

    Returns:
        [lines - 1] bool; False in the middle of a sentence.
    """
    kind = np.array(
        [2 * ends_sentence(line) + (after[0] in _OPENING) for line, after in itertools.pairwise(texts)],
        dtype=np.int64,
    )
    unsure = ~breaks.continues
    wrapped = chances.copy()
    counts = {True: np.array([6.0, 1.0, 3.0, 0.5]), False: np.array([0.5, 0.3, 5.0, 4.5])}
    share = _USUAL_SHARE
    for _ in range(_ROUNDS):
        weights = {True: wrapped[unsure], False: 1 - wrapped[unsure]}
        of_kind = {
            side: np.bincount(kind[unsure], weights[side], minlength=4) + counts[side]
            for side in (True, False)
        }
        likely = {side: of_kind[side] / of_kind[side].sum() for side in (True, False)}
        if wrapped.sum() > _USUAL_WEIGHT:
            share = min(0.95, breaks.continues.sum() / wrapped.sum())
        as_wrap = chances * (1 - share) * likely[True][kind]
        as_break = (1 - chances) * likely[False][kind]
        wrapped = np.where(breaks.continues, 1.0, as_wrap / (as_wrap + as_break))
    return unsure & (wrapped < 0.5)


def ends_sentence(line: str) -> bool:
    """Whether a line ends as a sentence does."""
    return line.rstrip(_CLOSING)[-1:] in _ENDINGS


def _estimate(
    classes: np.ndarray, labels: np.ndarray, guess: np.ndarray, weight: float, *, spread: int
) -> np.ndarray:
    """The mean label of each one's class, and of those around it, drawn towards a guess of its own."""
    size = int(classes.max()) + 1
    counts, sums = np.bincount(classes, minlength=size), np.bincount(classes, labels, minlength=size)
    window = np.concatenate([np.arange(1, spread + 2), np.arange(spread, 0, -1)]) / (spread + 1)
    counts, sums = np.convolve(counts, window, "same"), np.convolve(sums, window, "same")
    if size < len(window):  # numpy returns as many as the longer of the two
        start = (len(window) - size) // 2
        counts, sums = counts[start : start + size], sums[start : start + size]
    return np.clip((sums[classes] + weight * guess) / (counts[classes] + weight), 0.01, 0.99)
