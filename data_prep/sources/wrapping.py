"""Hard-wrapped lines to paragraphs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal

from data_prep.sources.chapters import is_bare_heading

LineWrap = Literal["auto", "joined", "kept"]
MAX_WRAP_CHARACTERS = 100
"""Hard-wrapped text keeps its lines shorter than this."""
_ROOM = 0.75
"""A line is ended on purpose when, with the next word, it would have filled no more of the usual width: wrapping
fills lines, but those of letters and quotations less."""
_CAPITAL_SHARE = 0.8
"""Verse begins nearly all lines with a capital; German prose does half of them."""
_UNSPACED = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef"
"""Chinese and Japanese script and punctuation, in which no space stands between words."""
_PARAGRAPH_INDENT = "\u3000"
_QUOTES = " \"'_*“”‘’«»„(—-"
_LEAST_VERSE, _LEAST_POEM = 3, 8
"""Lines by which a stanza, or a book of verse, is told."""


def paragraphs_of(text: str, line_wrap: LineWrap) -> list[str]:
    """The paragraphs of clean text.

    Args:
        line_wrap: `joined` joins wrapped lines, `kept` takes every line as a paragraph, `auto` tells by the
            lengths of the lines, and keeps the lines of verse within their paragraph.
    """
    return _WRAPS[line_wrap](text)


def _unwrap(text: str) -> list[str]:
    return _paragraphs(text, lambda part: False)


def _unwrap_if_wrapped(text: str) -> list[str]:
    if not _is_wrapped(text):
        return _keep(text)
    lines = [line.strip() for line in text.split("\n") if line]
    width = _ROOM * _wrap_width(lines)
    is_poem = len(lines) >= _LEAST_POEM and _has_capitals(lines)
    return _paragraphs(text, lambda part: _is_short(part, width) or (is_poem and _has_capitals(part)))


def _paragraphs(text: str, is_verse: Callable[[list[str]], bool]) -> list[str]:
    lines = text.split("\n")
    num_filled = sum(1 for line in lines if line)
    if (len(lines) - num_filled) * 50 < num_filled:
        return [_join(part) for part in _short_line_paragraphs(lines)]
    return [_lines(part) if is_verse(part) else _join(part) for part in _blank_line_paragraphs(lines)]


def _keep(text: str) -> list[str]:
    return [line for line in map(str.strip, text.split("\n")) if line]


_WRAPS: Mapping[LineWrap, Callable[[str], list[str]]] = MappingProxyType(
    {"auto": _unwrap_if_wrapped, "joined": _unwrap, "kept": _keep}
)


def _is_wrapped(text: str) -> bool:
    """Whether nearly all of the text is in lines of a printed line's length."""
    lengths = [len(line) for line in text.split("\n")]
    return sum(length for length in lengths if length > MAX_WRAP_CHARACTERS) < 0.2 * sum(lengths)


def _is_short(lines: list[str], width: float) -> bool:
    """Whether most lines of a paragraph were ended on purpose, as those of verse, lists and signatures are."""
    num_ended = sum(_has_room(line, following, width) for line, following in itertools.pairwise(lines))
    return len(lines) >= _LEAST_VERSE and 2 * num_ended >= len(lines)


def _has_capitals(lines: list[str]) -> bool:
    """Whether nearly every line begins with a capital."""
    first = [line.lstrip(_QUOTES)[:1] for line in lines]
    cased = [letter for letter in first if letter.isupper() or letter.islower()]
    return sum(map(str.isupper, cased)) > _CAPITAL_SHARE * len(cased)


def _blank_line_paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    paragraph: list[str] = []
    for line in lines:
        if line.startswith(_PARAGRAPH_INDENT) and paragraph:
            yield paragraph
            paragraph = []
        if line:
            paragraph.append(line.strip())
        if paragraph and (not line or (len(paragraph) == 1 and is_bare_heading(line))):
            yield paragraph
            paragraph = []
    if paragraph:
        yield paragraph


def _short_line_paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs of a book without blank lines: one ends where the next word would still have fit.

    Wrapping fills lines, so a line that had room for the next line's first word was ended on purpose.
    """
    filled = [line.strip() for line in lines if line.strip()]
    width = _wrap_width(filled)
    paragraph: list[str] = []
    for line, following in zip(filled, [*filled[1:], ""], strict=True):
        paragraph.append(line)
        had_room = _has_room(line, following, width)
        if had_room or is_bare_heading(following):
            yield paragraph
            paragraph = []
    if paragraph:
        yield paragraph


def _wrap_width(lines: list[str]) -> int:
    """The length that at most one line in twenty exceeds, less a few characters for uneven wrapping."""
    if not lines:
        return 0
    return sorted(map(len, lines))[len(lines) * 19 // 20] - 5


def _has_room(line: str, following: str, width: float) -> bool:
    """Whether the first word of the next line would have stood on this one."""
    word = following[:1] if _UNSPACED_START.match(following) else following.split(" ", 1)[0]
    return len(line) + 1 + len(word) < width


def _lines(lines: list[str]) -> str:
    """Verse: one paragraph of several lines."""
    return "\n".join(lines).replace("\u00ad", "")


def _join(lines: list[str]) -> str:
    """One line. A hyphen or dash at a line's end joins without a space, Chinese and Japanese script always does; a
    soft hyphen disappears."""
    joined = "\n".join(lines)
    if "-\n" in joined or "—\n" in joined:
        joined = _DASH_BREAK.sub(r"\1", joined)
    joined = _UNSPACED_BREAK.sub("", joined)
    return joined.replace("\u00ad\n", "").replace("\u00ad", "").replace("\n", " ")


_UNSPACED_START = re.compile(f"[{_UNSPACED}]")
_UNSPACED_BREAK = re.compile(f"(?<=[{_UNSPACED}])\n(?=[{_UNSPACED}])")
_DASH_BREAK = re.compile(r"(?<=\w)(--?|—)\n(?=\w)")
