"""Hard-wrapped lines to paragraphs."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import numpy as np
import regex

from data_prep.text.books import is_bare_heading
from data_prep.text.line_breaks import (
    NO_SPACE,
    QUOTES,
    UNEVEN,
    Breaks,
    Lines,
    are_set,
    breaks_of,
    come_from_wrapping,
    ends_sentence,
    read_lines,
    width_of,
    wrap_chances,
)

LineWrap = Literal["auto", "joined", "kept"]
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
    lines = read_lines(text)
    if line_wrap == "kept" or not lines.texts:
        return lines.texts
    close, breaks = _without_spacing(lines)
    if line_wrap == "joined":
        return _resumed(_wrapped_paragraphs(close, breaks, lambda start, end: False))
    together = close.blanks[1:] == 0
    if not come_from_wrapping(breaks, together):
        return _resumed(_kept_paragraphs(lines, breaks))
    is_ended = (wrap_chances(breaks, together) < 0.5) & ~breaks.continues

    def is_verse(start: int, end: int) -> bool:
        """Whether most lines of a paragraph were ended on purpose, as in verse, lists and signatures."""
        num_ended = np.count_nonzero(is_ended[start : end - 1])
        if end - start < _LEAST_VERSE or 2 * num_ended < end - start:
            return False
        return not _is_narrow_prose(breaks, start, end)

    return _resumed(_wrapped_paragraphs(close, breaks, is_verse))


def _without_spacing(lines: Lines) -> tuple[Lines, Breaks]:
    """Remove the blank lines of a double-spaced text; return the lines and their breaks."""
    breaks, spaced = breaks_of(lines.texts), lines.blanks[1:] == 1
    is_close = lines.blanks[1:] == 0
    is_spaced = np.count_nonzero(spaced) > np.count_nonzero(is_close) and come_from_wrapping(breaks, spaced)
    return (lines.spaced_by(1) if is_spaced else lines), breaks


def _wrapped_paragraphs(lines: Lines, breaks: Breaks, is_verse: Callable[[int, int], bool]) -> Iterator[str]:
    """Paragraphs that blank lines separate; or indents, or lines that end early, where there are more of these."""
    together = lines.blanks[1:] == 0
    num_blank = int(np.count_nonzero(~together))
    ends = ~together & ~_is_torn(lines.texts, breaks)
    is_set = together & are_set(lines.texts, breaks, wrap_chances(breaks, together))
    deeper = together & (lines.indents[1:] > lines.indents[:-1])
    num_deeper = np.count_nonzero(deeper)
    if num_deeper > num_blank and np.count_nonzero(breaks.continues[deeper]) < _RARE * num_deeper:
        # Indents, and not blank lines, mark where paragraphs begin: deeper ones than the least that is no exception.
        levels, counts = np.unique(lines.indents, return_counts=True)
        usual = next(iter(levels[counts > _RARE * len(lines.indents)]), levels[counts.argmax()])
        ends |= (lines.indents > usual)[1:] & (is_set | (lines.indents[1:] > lines.indents[:-1]))
    elif np.count_nonzero(is_set) > num_blank and (not num_blank or come_from_wrapping(breaks, together)):
        ends |= is_set | np.array([is_bare_heading(text) for text in lines.texts[1:]], dtype=bool)
        width = _NARROW * width_of(breaks.length)
        for start, end in _blocks(lines.texts, ~together):
            if end - start >= _LEAST_VERSE and _is_narrow_prose(breaks, start, end, width):
                ends[start : end - 1] = False
    for start, end in _blocks(lines.texts, ends):
        yield _lines(lines.texts[start:end]) if is_verse(start, end) else _join(lines.texts[start:end])


def _is_torn(texts: list[str], breaks: Breaks) -> np.ndarray:
    """[lines - 1] bool: whether a line is full and ends within a sentence, as the last one of a page does."""
    full = breaks.reach > max(width_of(breaks.length) - UNEVEN, _LEAST_TORN)
    torn = [
        is_full and (line[-1].islower() or (line[-1] in ",-" and after.lstrip(QUOTES)[:1].islower()))
        for is_full, (line, after) in zip(full, itertools.pairwise(texts), strict=True)
    ]
    return np.array(torn, dtype=bool)


def _kept_paragraphs(lines: Lines, breaks: Breaks) -> Iterator[str]:
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
        elif max(map(len, block)) <= _MAX_VERSE_CHARACTERS and not all(map(ends_sentence, block)):
            yield _lines(block)
        else:
            yield from block


def _is_poem(texts: list[str], blank: np.ndarray) -> bool:
    """Whether a text is verse in stanzas: short lines that begin with capitals, and are no sentences."""
    num_short = sum(len(text) for text in texts if len(text) <= _MAX_VERSE_CHARACTERS)
    first = [text.lstrip(QUOTES)[:1] for text in texts]
    cased = [letter for letter in first if letter.isupper() or letter.islower()]
    return (
        len(texts) >= _LEAST_POEM
        and num_short > 0.8 * sum(map(len, texts))
        and int(np.count_nonzero(blank)) * _LONGEST_STANZA > len(texts)
        and sum(map(ends_sentence, texts)) < 0.6 * len(texts)
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


def _is_narrow_prose(breaks: Breaks, start: int, end: int, most: float = math.inf) -> bool:
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
    first = following.lstrip(QUOTES)[:1]
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


_UNSPACED_BREAK = regex.compile(f"(?<={NO_SPACE})\n(?={NO_SPACE})")
_DASH_BREAK = re.compile(r"(?<=\w)(--?|—)\n(?=\w)")
