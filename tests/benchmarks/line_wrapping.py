"""Hard-wrapped books: the paragraphs that are found again after novels were laid out in many ways.

Novels below CLOZE_DATA that have a paragraph per line are wrapped to one width, to two, or twice, and their paragraphs
separated by blank lines, indents or nothing. Nothing is timed: shares are the same on every machine.
"""

from __future__ import annotations

import os
import random
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from data_prep.text.encodings import decode_text
from data_prep.text.wrapping import LineWrap, paragraphs_of

CHARACTERS = 100_000
"""Of each novel."""
_QUOTES = " \"'_*“”‘’«»„(—-–[]"
Wrap = Callable[[Sequence[str]], list[list[str]]]


@dataclass(frozen=True, slots=True)
class Found:
    """What became of the paragraphs of several books in one layout."""

    layout: str
    precision: float
    """Of the paragraphs found, the share that ends where one does."""
    recall: float
    """Of the paragraphs there are, the share whose end was found."""
    mid_sentence: float
    """Of the lines and paragraphs found, the share that begins with a small letter."""

    def __str__(self) -> str:
        return (
            f"{self.layout}: paragraphs found with precision {self.precision:.3f} and recall {self.recall:.3f};"
            f" {100 * self.mid_sentence:.2f}% begin in mid-sentence"
        )


def run() -> Iterator[Found | str]:
    """Every layout of the novels that have a paragraph per line, then all novels as they are."""
    folder = Path(os.environ["CLOZE_DATA"]) / "books" / "en"
    books = [book for path in sorted(folder.glob("*.txt")) if (book := paragraphs_in(path))]
    for wrap in WRAPS:
        for separator in SEPARATORS:
            yield found(books, wrap, separator)
    starts = list(chain.from_iterable(paragraphs_of(_text(path), "auto") for path in folder.glob("*.txt")))
    yield f"novels as they are: {100 * mid_sentence(starts):.2f}% of {len(starts):,} paragraphs begin in mid-sentence"


def paragraphs_in(path: Path) -> list[str]:
    """The first paragraphs of a novel; none where its lines are wrapped."""
    lines = [" ".join(line.split()) for line in _text(path).split("\n") if line.strip()][30:]
    if sorted(map(len, lines))[len(lines) * 9 // 10] < 250 or mid_sentence(lines) > 0.01:
        return []
    kept, size = [], 0
    for line in lines:
        kept.append(line)
        size += len(line)
        if size > CHARACTERS:
            break
    return kept


def found(
    books: Sequence[Sequence[str]], wrap: str, separator: str, line_wrap: LineWrap = "auto", lang: str = "en"
) -> Found:
    """The paragraphs of books, laid out and read again."""
    hits = num_found = num_there = 0
    starts: list[str] = []
    for paragraphs in books:
        page = SEPARATORS[separator](WRAPS[wrap](paragraphs))
        read = paragraphs_of(decode_text(page.encode(), "auto", lang), line_wrap)
        pieces = [line for paragraph in read for line in paragraph.split("\n")]
        ends, there = _ends(pieces), _ends(paragraphs)
        hits, num_found, num_there = hits + len(ends & there), num_found + len(ends), num_there + len(there)
        starts += pieces
    return Found(f"{wrap}, {separator}", hits / num_found, hits / num_there, mid_sentence(starts))


def mid_sentence(paragraphs: Sequence[str]) -> float:
    """The share that begins with a small letter."""
    return sum(text.lstrip(_QUOTES)[:1].islower() for text in paragraphs) / len(paragraphs)


def _text(path: Path) -> str:
    return decode_text(path.read_bytes(), "auto", "en")


def _ends(paragraphs: Sequence[str]) -> set[int]:
    """Where paragraphs end, counted in characters that no layout changes."""
    ends, size = set(), 0
    for paragraph in paragraphs:
        size += len(re.sub(r"[\s\u00ad-]", "", paragraph))
        ends.add(size)
    return ends


def _filled(paragraphs: Sequence[str], widths: Callable[[], int]) -> list[list[str]]:
    """Paragraphs in lines, each as wide as the next width allows."""
    pages = []
    for paragraph in paragraphs:
        lines, width = [""], widths()
        for word in paragraph.split():
            if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
                lines.append("")
                width = widths()
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
        pages.append(lines)
    return pages


def _to(width: int) -> Wrap:
    return lambda paragraphs: _filled(paragraphs, lambda: width)


def _twice(first: int, second: int) -> Wrap:
    return lambda paragraphs: [
        [piece for line in lines for piece in textwrap.wrap(line, second, break_long_words=False)]
        for lines in _to(first)(paragraphs)
    ]


def _alternating(first: int, second: int) -> Wrap:
    def wrap(paragraphs: Sequence[str]) -> list[list[str]]:
        widths = chain.from_iterable(iter(lambda: (first, second), None))
        return _filled(paragraphs, lambda: next(widths))

    return wrap


def _uneven(least: int, most: int) -> Wrap:
    def wrap(paragraphs: Sequence[str]) -> list[list[str]]:
        draw = random.Random(1)
        return _filled(paragraphs, lambda: draw.randint(least, most))

    return wrap


def _pages(paragraphs: Sequence[Sequence[str]]) -> str:
    """A blank line behind every fortieth line, too."""
    lines = [line for paragraph in paragraphs for line in (*paragraph, "")]
    return "\n".join(line + "\n" * (number % 40 == 39) for number, line in enumerate(lines))


WRAPS: dict[str, Wrap] = {
    "40 wide": _to(40),
    "72 wide": _to(72),
    "130 wide": _to(130),
    "72 and 48 wide by turns": _alternating(72, 48),
    "72 wide, then 50": _twice(72, 50),
    "65 wide, then 60": _twice(65, 60),
    "58 to 75 wide": _uneven(58, 75),
}
SEPARATORS: dict[str, Callable[[Sequence[Sequence[str]]], str]] = {
    "blank lines": lambda book: "\n\n".join("\n".join(lines) for lines in book),
    "nothing between": lambda book: "\n".join("\n".join(lines) for lines in book),
    "indents": lambda book: "\n".join("   " + "\n".join(lines) for lines in book),
    "blank lines between all lines": lambda book: "\n\n".join("\n\n".join(lines) for lines in book),
    "one blank line and two": lambda book: "\n\n\n".join("\n\n".join(lines) for lines in book),
    "all indented, trailing blanks, CRLF": lambda book: "\r\n\r\n".join(
        "\r\n".join(f"    {line}  " for line in lines) for lines in book
    ),
    "pages": _pages,
}
