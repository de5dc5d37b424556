"""Hard-wrapped lines to paragraphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal

from data_prep.sources.chapters import is_bare_heading

LineWrap = Literal["auto", "joined", "kept"]
MAX_WRAP_CHARACTERS = 100
"""Hard-wrapped text keeps its lines shorter than this."""


def paragraphs_of(text: str, line_wrap: LineWrap) -> list[str]:
    """The paragraphs of clean text.

    Args:
        line_wrap: `joined` joins wrapped lines, `kept` takes every line as a paragraph, `auto` tells by the
            lengths of the lines.
    """
    return _WRAPS[line_wrap](text)


def _unwrap(text: str) -> list[str]:
    lines = text.split("\n")
    num_filled = sum(1 for line in lines if line)
    if (len(lines) - num_filled) * 50 < num_filled:
        return _join(_short_line_paragraphs(lines))
    return _join(_blank_line_paragraphs(lines))


def _unwrap_if_wrapped(text: str) -> list[str]:
    return _unwrap(text) if _is_wrapped(text) else _keep(text)


def _keep(text: str) -> list[str]:
    return [line for line in map(str.strip, text.split("\n")) if line]


_WRAPS: Mapping[LineWrap, Callable[[str], list[str]]] = MappingProxyType(
    {"auto": _unwrap_if_wrapped, "joined": _unwrap, "kept": _keep}
)


def _is_wrapped(text: str) -> bool:
    """Whether nearly all of the text is in lines of a printed line's length."""
    lengths = [len(line) for line in text.split("\n")]
    return sum(length for length in lengths if length > MAX_WRAP_CHARACTERS) < 0.2 * sum(lengths)


def _blank_line_paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    paragraph: list[str] = []
    for line in lines:
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
        had_room = len(line) + 1 + len(following.split(" ", 1)[0]) < width
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


def _join(paragraphs: Iterable[list[str]]) -> list[str]:
    return [_join_lines(lines) for lines in paragraphs]


def _join_lines(lines: list[str]) -> str:
    """One paragraph. A hyphen or dash at a line's end joins without a space; a soft hyphen disappears."""
    joined = "\n".join(lines)
    if "-\n" in joined or "—\n" in joined:
        joined = _DASH_BREAK.sub(r"\1", joined)
    return joined.replace("\u00ad\n", "").replace("\u00ad", "").replace("\n", " ")


_DASH_BREAK = re.compile(r"(?<=\w)(--?|—)\n(?=\w)")
