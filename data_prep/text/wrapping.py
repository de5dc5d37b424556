"""Hard-wrapped lines to paragraphs: which line breaks come from wrapping and which were set on purpose.

A break in the middle of a sentence, where the next line begins with a small letter, comes from wrapping. How many of
them do so depends on the language and not on the layout. So the share of such breaks among all of one layout (lines of
these lengths) shows how many breaks of that layout come from wrapping (Elkan and Noto 2008, "Learning classifiers from
only positive and unlabeled data", section 2: the labelled positives are selected at random). That needs no notion of
a page's width: lines of two widths, or lines that were wrapped twice, are layouts like others.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import regex

from data_prep.text.books import is_bare_heading
from data_prep.text.words import UNSPACED

LineWrap = Literal["auto", "joined", "kept"]
_QUOTES = " \"'_*“”‘’«»„(—-–[]"
"""Characters before the first letter of a sentence or verse."""
_NO_SPACE = rf"[{UNSPACED}\u3000-\u303f\u30fb\uff00-\uffef]"
"""Scripts without spaces between words, and their punctuation."""
_UNSPACED_START = regex.compile(_NO_SPACE)
_UNSPACED_BREAK = regex.compile(f"(?<={_NO_SPACE})\n(?={_NO_SPACE})")
_DASH_BREAK = re.compile(r"(?<=\w)(--?|—)\n(?=\w)")
_MAX_VERSE_CHARACTERS = 100
"""Verse has shorter lines."""
_CAPITAL_SHARE = 0.8
"""Verse begins nearly all lines with a capital; German prose does half of them."""
_LEAST_VERSE, _LEAST_POEM, _LONGEST_STANZA = 3, 8, 40
"""Least lines of a stanza, least lines of a book of verse, and usual maximum of a stanza."""
_LEAST_NARROW = 1.3
"""Least sum of two shares, of full lines and of lines with a continuing sentence, for prose in a narrower column
(letters, epigraphs). Verse has one of them at most."""
_NARROW = 0.9
"""Share of the book's width."""
_LEAST_BEGUN = 50
"""A paragraph of so many characters that ends within a sentence continues after a blank line: a page ended there."""
_LEAST_TORN = 30
"""A line of fewer characters says nothing of where a page ended."""
_CONTINUING = ",;!?)"
"""No paragraph begins with these."""
_MOSTLY = 3
"""So many times more breaks are with blank lines than without, where blank lines separate paragraphs."""
_RARE = 0.1
"""Largest share of indented lines that continue a sentence, in a book with indented paragraphs."""


def paragraphs_of(text: str, line_wrap: LineWrap) -> list[str]:
    """The paragraphs of clean text.

    Args:
        line_wrap: `joined` joins wrapped lines, `kept` takes every line as a paragraph, `auto` decides by the
            text whether its lines are wrapped, and keeps the lines of verse within their paragraph.
    """
    lines = _read_lines(text)
    if line_wrap == "kept" or not lines.texts:
        return lines.texts
    close, breaks = lines, _breaks_of(lines.texts)
    spaced = lines.blanks[1:] == 1
    is_mostly = np.count_nonzero(spaced) > np.count_nonzero(lines.blanks[1:] == 0)
    if is_mostly and _come_from_wrapping(breaks, spaced):  # a double-spaced text
        close = replace(lines, blanks=np.maximum(lines.blanks - 1, 0))
    together = close.blanks[1:] == 0
    if line_wrap == "auto" and not _come_from_wrapping(breaks, together):
        return _resumed(_kept_paragraphs(lines, breaks))
    chances = _wrap_chances(breaks, together)
    is_ended = (chances < 0.5) & ~breaks.continues

    def is_verse(start: int, end: int) -> bool:
        """Whether most lines of a paragraph were ended on purpose, as in verse, lists and signatures."""
        num_ended = np.count_nonzero(is_ended[start : end - 1])
        if line_wrap == "joined" or end - start < _LEAST_VERSE or 2 * num_ended < end - start:
            return False
        return not _is_narrow_prose(breaks, start, end)

    return _resumed(_wrapped_paragraphs(close, breaks, chances, is_verse))


def _wrapped_paragraphs(
    lines: _Lines, breaks: _Breaks, chances: np.ndarray, is_verse: Callable[[int, int], bool]
) -> Iterator[str]:
    """Paragraphs that blank lines separate; or indents, or lines that end early, where there are more of these."""
    together = lines.blanks[1:] == 0
    num_blank = int(np.count_nonzero(~together))
    ends = ~together & ~_is_torn(lines.texts, breaks)
    is_set = together & _are_set(lines.texts, breaks, chances)
    deeper = together & (lines.indents[1:] > lines.indents[:-1])
    num_deeper = np.count_nonzero(deeper)
    if num_deeper > num_blank and np.count_nonzero(breaks.continues[deeper]) < _RARE * num_deeper:
        # Indents, and not blank lines, mark where paragraphs begin: deeper ones than the least that is no exception.
        levels, counts = np.unique(lines.indents, return_counts=True)
        usual = next(iter(levels[counts > _RARE * len(lines.indents)]), levels[counts.argmax()])
        ends |= (lines.indents > usual)[1:] & (is_set | (lines.indents[1:] > lines.indents[:-1]))
    elif np.count_nonzero(is_set) > num_blank and (not num_blank or _come_from_wrapping(breaks, together)):
        ends |= is_set | np.array([is_bare_heading(text) for text in lines.texts[1:]], dtype=bool)
        width = _NARROW * _width_of(breaks.length)
        for start, end in _blocks(lines.texts, ~together):
            if end - start >= _LEAST_VERSE and _is_narrow_prose(breaks, start, end, width):
                ends[start : end - 1] = False
    for start, end in _blocks(lines.texts, ends):
        yield _lines(lines.texts[start:end]) if is_verse(start, end) else _join(lines.texts[start:end])


def _is_torn(texts: list[str], breaks: _Breaks) -> np.ndarray:
    """[lines - 1] bool: whether a line is full and ends within a sentence, as the last one of a page does."""
    full = breaks.reach > max(_width_of(breaks.length) - _UNEVEN, _LEAST_TORN)
    torn = [
        is_full and (line[-1].islower() or (line[-1] in ",-" and after.lstrip(_QUOTES)[:1].islower()))
        for is_full, (line, after) in zip(full, itertools.pairwise(texts), strict=True)
    ]
    return np.array(torn, dtype=bool)


def _kept_paragraphs(lines: _Lines, breaks: _Breaks) -> Iterator[str]:
    """Every line a paragraph; but where blank lines separate paragraphs, others within them belong to verse or
    lists, or of prose in a narrower column."""
    texts, blank = lines.texts, lines.blanks[1:] > 0
    if not _is_poem(texts, blank) and np.count_nonzero(blank) < _MOSTLY * np.count_nonzero(~blank):
        yield from texts
        return
    for start, end in _blocks(texts, blank):
        block = texts[start:end]
        if len(block) > 1 and _is_narrow_prose(breaks, start, end):
            yield _join(block)
        elif max(map(len, block)) <= _MAX_VERSE_CHARACTERS and not all(map(_ends_sentence, block)):
            yield _lines(block)
        else:
            yield from block


def _is_poem(texts: list[str], blank: np.ndarray) -> bool:
    """Whether a text is verse in stanzas: short lines that begin with capitals, and are no sentences."""
    num_short = sum(len(text) for text in texts if len(text) <= _MAX_VERSE_CHARACTERS)
    first = [text.lstrip(_QUOTES)[:1] for text in texts]
    cased = [letter for letter in first if letter.isupper() or letter.islower()]
    return (
        len(texts) >= _LEAST_POEM
        and num_short > 0.8 * sum(map(len, texts))
        and int(np.count_nonzero(blank)) * _LONGEST_STANZA > len(texts)
        and sum(map(_ends_sentence, texts)) < 0.6 * len(texts)
        and sum(map(str.isupper, cased)) > _CAPITAL_SHARE * len(cased)
    )


def _blocks(texts: list[str], ends: np.ndarray) -> Iterator[tuple[int, int]]:
    """(first, after the last) of the lines of each paragraph; a heading is one of its own."""
    start = 0
    for end in [*(np.flatnonzero(ends) + 1).tolist(), len(texts)]:
        if end - start > 1 and is_bare_heading(texts[start]):
            yield start, start + 1
            start += 1
        yield start, end
        start = end


def _is_narrow_prose(breaks: _Breaks, start: int, end: int, most: float = math.inf) -> bool:
    """Whether lines fill a narrower column of their own, and sentences continue from line to line."""
    inside = slice(start, end - 1)
    width = breaks.length[start:end].max()
    return (
        width < most
        and breaks.continues[inside].mean() + (breaks.reach[inside] > width).mean() >= _LEAST_NARROW
    )


def _resumed(paragraphs: Iterable[str]) -> list[str]:
    """Join paragraphs that end within a sentence with the next one, as at the end of a page; not if most end so, as
    the entries of a list."""
    paragraphs = list(paragraphs)
    groups: list[list[str]] = []
    size = 0
    for paragraph in paragraphs:
        if groups and _continues_after(groups[-1][-1], size, paragraph):
            groups[-1].append(paragraph)
            size += len(paragraph)
        else:
            groups.append([paragraph])
            size = len(paragraph)
    if 2 * len(groups) < len(paragraphs):
        return paragraphs
    return [_join(group) if len(group) > 1 else group[0] for group in groups]


def _continues_after(paragraph: str, size: int, following: str) -> bool:
    """Whether a paragraph of so many characters with this end continues in the following one."""
    first = following.lstrip(_QUOTES)[:1]
    if not (first.islower() or following[0] in _CONTINUING) or "\n" in paragraph or "\n" in following:
        return False
    if size < _LEAST_BEGUN:
        return paragraph.isupper() and paragraph.isalpha() and len(following) > _LEAST_BEGUN  # a drop cap
    last = paragraph.rstrip(" _*")[-1:]
    return last.isalpha() or last in ",-"


def _lines(lines: list[str]) -> str:
    """Verse: one paragraph of several lines."""
    return "\n".join(lines).replace("\u00ad", "")


def _join(lines: list[str]) -> str:
    """One line. A hyphen or dash at a line's end joins without a space, scripts without spaces always do; a
    soft hyphen disappears."""
    joined = "\n".join(lines)
    if "-\n" in joined or "—\n" in joined:
        joined = _DASH_BREAK.sub(r"\1", joined)
    if not joined.isascii():
        joined = _UNSPACED_BREAK.sub("", joined)
    return joined.replace("\u00ad\n", "").replace("\u00ad", "").replace("\n", " ")


# -- the breaks of a text ---------------------------------------------------------------------------------

_PARAGRAPH_INDENT = "\u3000"
_UNEVEN = 4.5
"""Characters that the longest lines have more than full ones."""
_HYPHENS = "-\u00ad\u2010"
_OPENING = "\"'“‘«»„—-–「『¿¡"
_ENDINGS = ".!?:…;。！？：；」』।۔؟"
_CLOSING = " \"'_*”’»«“)]"
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
class _Lines:
    """The lines of a text that are not blank."""

    texts: list[str]
    """Without white space around them."""
    blanks: np.ndarray
    """[lines] int64: blank lines before each; an ideographic space, which begins paragraphs, counts for one."""
    indents: np.ndarray
    """[lines] int64: white space that each begins with, in characters."""


@dataclass(frozen=True, slots=True)
class _Breaks:
    """Facts about the breaks between a text's lines; one for each line but the last, about the break after it."""

    continues: np.ndarray
    """[lines - 1] bool: it is inside a sentence."""
    pauses: np.ndarray
    """[lines - 1] bool: a punctuation mark precedes it."""
    length: np.ndarray
    """[lines - 1] int64: characters of the line ahead of it."""
    reach: np.ndarray
    """[lines - 1] int64: how long that line would be with the first word of the next."""


def _read_lines(text: str) -> _Lines:
    """The lines of clean text."""
    texts, blanks, indents, gap = [], [], [], 0
    for line in text.split("\n"):
        bare = line.strip()
        if bare:
            texts.append(bare)
            blanks.append(gap or int(line[0] == _PARAGRAPH_INDENT))
            indents.append(len(line) - len(line.lstrip()))
        gap = 0 if bare else gap + 1
    return _Lines(texts, np.array(blanks, dtype=np.int64), np.array(indents, dtype=np.int64))


def _breaks_of(texts: list[str]) -> _Breaks:
    """The breaks between lines that follow one another."""
    pairs = list(itertools.pairwise(texts))
    continues = np.array([_continues_in(line, following) for line, following in pairs], dtype=bool)
    length = np.array([len(line) for line, _ in pairs], dtype=np.int64)
    first = np.array(
        [
            2 if _UNSPACED_START.match(following) else 1 + len(following.split(" ", 1)[0])
            for _, following in pairs
        ],
        dtype=np.int64,
    )
    pauses = np.array([not (line[-1].isalnum() or line[-1] in _HYPHENS) for line, _ in pairs], dtype=bool)
    return _Breaks(continues, pauses, length, length + first)


def _continues_in(line: str, following: str) -> bool:
    """Whether a sentence of a line continues on the next one; in scripts without small letters, whether the line ends
    with a letter."""
    first = following.lstrip(_QUOTES)[:1]
    if first.islower():
        return True
    return first.isalpha() and not first.isupper() and line[-1].isalpha()


def _width_of(lengths: np.ndarray) -> int:
    """The length that at most one line in twenty exceeds."""
    return int(np.sort(lengths)[len(lengths) * 19 // 20]) if len(lengths) else 0


def _come_from_wrapping(breaks: _Breaks, chosen: np.ndarray) -> bool:
    """Whether the chosen breaks, a [lines - 1] bool array, come mostly from wrapping."""
    continues = chosen & breaks.continues
    full = chosen & (breaks.reach > _FULL * (width := _width_of(breaks.length[chosen])))
    count, num_full, num_both = (int(np.count_nonzero(each)) for each in (continues, full, continues & full))
    paused = (int(np.count_nonzero(breaks.pauses[continues])) + _USUAL_PAUSES) / (count + _USUAL_WEIGHT)
    return (
        width >= _LEAST_WIDTH
        and num_both >= max(1, _LEAST_SHARE * (num_full + _LEAST_COUNTED), _LEAST_FULL * count)
        and count >= _LEAST_OF_ALL * int(np.count_nonzero(chosen))
        and paused < _MOST_PAUSES
    )


def _wrap_chances(breaks: _Breaks, together: np.ndarray) -> np.ndarray:
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
    by_rule = 1 / (1 + np.exp(-np.clip(reach - (_width_of(length) - _UNEVEN), -30, 30)))
    full = by_rule > 0.5
    share = (continues[full].sum() + _USUAL_SHARE * _USUAL_WEIGHT) / (full.sum() + _USUAL_WEIGHT)
    by_reach = _estimate(reach, continues / share, by_rule, _RULE_WEIGHT, spread=2)
    before = np.where(np.append(False, together[:-1]), np.append(0, lengths[:-1]), 0)[together]
    both = before // _PREVIOUS_CLASS * (1 + reach.max() // _REACH_CLASS) + reach // _REACH_CLASS
    _, both = np.unique(both, return_inverse=True)
    chances[together] = _estimate(both, continues / share, by_reach, _LENGTH_WEIGHT, spread=0)
    return chances


def _are_set(texts: list[str], breaks: _Breaks, chances: np.ndarray) -> np.ndarray:
    """Return which breaks of a text were set on purpose, by the layout and by the text around each.

    What ends and opens sentences around breaks of either kind is learned from the text, in a few rounds of
    expectation maximisation.

    Args:
        chances: [lines - 1] that a break comes from wrapping, by the layout.

    Returns:
        [lines - 1] bool; False in the middle of a sentence.
    """
    kind = np.array(
        [2 * _ends_sentence(line) + (after[0] in _OPENING) for line, after in itertools.pairwise(texts)],
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


def _ends_sentence(line: str) -> bool:
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
