"""Hard-wrapped text to paragraphs: any layout of lines, letters, epigraphs, verse, lists, and pages."""

import random
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.encodings import decode_text
from data_prep.text.wrapping import LineWrap, paragraphs_of

PROSE = [
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness,"
    " it was the season of Light, it was the season of Darkness, and so on.",
    "There were a king with a large jaw and a queen with a plain face, on the throne of England; in both countries it"
    " was clearer than crystal to the lords of the State that things in general were settled for ever.",
    '"Well?" she said.',
    "He said nothing, and they walked on through the rain.",
] * 4
LETTER = (
    "I have the honour to inform you that the parcel which you were so good as to send me on the fourteenth of this"
    " month has arrived, and that its contents are such as I had hoped for. I shall write again when my brother"
    " comes home."
)
VERSE = (
    "Tiger, tiger, burning bright\nIn the forests of the night,\nWhat immortal hand or eye\n"
    "Could frame thy fearful symmetry?"
)
POEM = [
    "So we'll go no more a roving\nSo late into the night,\nThough the heart be still as loving,\n"
    "And the moon be still as bright.",
    "For the sword outwears its sheath,\nAnd the soul wears out the breast,\nAnd the heart must pause to breathe,\n"
    "And love itself have rest.",
]
CONTENTS = "I. The Period\nII. The Mail\nIII. The Night Shadows\nIV. The Preparation"
WORDS = ["abandon", "ability", "able", "about", "above", "absence", "accept", "access", "accident"]
UNMARKED = ("nothing between", "blank lines between all lines")
"""Layouts in which a paragraph whose last line is full cannot be told from one that goes on."""


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


def found(books: Sequence[Sequence[str]], wrap: str, separator: str, line_wrap: LineWrap = "auto") -> Found:
    """The paragraphs of books, laid out and read again."""
    hits = num_found = num_there = 0
    starts: list[str] = []
    for paragraphs in books:
        page = SEPARATORS[separator](WRAPS[wrap](paragraphs))
        read = paragraphs_of(decode_text(page.encode(), "auto", "en"), line_wrap)
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
    """Lines with a blank line after every fortieth, too."""
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


def wrapped(text: str, width: int = 70, indent: int = 0) -> str:
    return textwrap.indent("\n".join(textwrap.wrap(text, width)), " " * indent)


@pytest.mark.parametrize("separator", ["\n\n", "\n", "\n    "])
def test_letters_and_epigraphs_in_a_narrower_column_are_joined_and_verse_and_contents_keep_their_lines(
    separator,
):
    prose = separator.join(map(wrapped, PROSE))
    for width, indent in ((44, 6), (38, 0), (60, 4)):
        inserted = wrapped(LETTER, width, indent)
        text = "\n\n".join([CONTENTS, "CHAPTER I.", prose, inserted, prose, VERSE, prose])
        found = paragraphs_of(text, "auto")
        assert found.count(LETTER) == 1
        if separator == "\n\n":
            assert found == [CONTENTS, "CHAPTER I.", *PROSE, LETTER, *PROSE, VERSE, *PROSE]
        else:
            lines = [*CONTENTS.split("\n"), "CHAPTER I.", *VERSE.split("\n")]
            assert [line for line in lines if not any(line in part.split("\n") for part in found)] == []
            assert [part for part in PROSE if part not in found] == []
        joined = paragraphs_of(text, "joined")
        assert LETTER in joined
        assert all("\n" not in part for part in joined)


@pytest.mark.parametrize("line_wrap", ["auto", "joined"])
@pytest.mark.parametrize("separator", [*SEPARATORS])
@pytest.mark.parametrize("wrap", ["72 and 48 wide by turns", "72 wide, then 50", "130 wide"])
def test_lines_of_two_widths_and_blank_lines_between_all_lines_are_joined(wrap, separator, line_wrap):
    extra = [f"{part} Then {number} more." for number, part in enumerate(PROSE)]
    read = found([[*PROSE, LETTER, *PROSE[::-1], *extra] * 6], wrap, separator, line_wrap)
    assert read.precision > 0.93
    assert read.recall > 0.75
    assert read.mid_sentence < 0.02


@pytest.mark.parametrize(
    ("text", "line_wrap", "expected"),
    [
        ("\n\n".join(part * 3 for part in PROSE), "auto", [part * 3 for part in PROSE]),
        ("\n".join(part * 3 for part in PROSE), "auto", [part * 3 for part in PROSE]),
        ("\n\n".join(POEM), "auto", POEM),
        ("\n\n".join(POEM), "joined", [stanza.replace("\n", " ") for stanza in POEM]),
        ("\n".join(WORDS), "auto", WORDS),
        (
            "a well-\nknown man--\nbut no sol\u00ad\ndier; a dash -\nthen\n\nmore",
            "joined",
            ["a well-known man--but no soldier; a dash - then", "more"],
        ),
        (
            "\u3000次日，三人同行，路遇一人，乃徐州刺史陶\n谦之使也。\n\u3000飞曰：然。\n\n" * 8,
            "auto",
            ["次日，三人同行，路遇一人，乃徐州刺史陶谦之使也。", "飞曰：然。"] * 8,
        ),
        ("ภาษาไทยไม่มี\nช่องว่าง\nဤစာကြောင်း\nများ", "joined", ["ภาษาไทยไม่มีช่องว่างဤစာကြောင်းများ"]),
    ],
    ids=["wide", "wide, unspaced", "poem", "poem, joined", "words", "hyphens", "Chinese", "Thai and Burmese"],
)
def test_layouts_and_scripts_have_their_own_paragraphs(text, line_wrap, expected):
    assert paragraphs_of(text, line_wrap) == expected


@pytest.mark.parametrize(
    "form", ["word: {often}what one says", "Mr. Brown said that it was {number}, and left."]
)
def test_lists_are_no_wrapped_prose(form):
    lines = [form.format(number=number, often="it is " * (number % 11)) for number in range(100)]
    assert paragraphs_of("\n".join(lines), "auto") == lines


def test_a_sentence_continues_after_the_blank_lines_of_a_page_break():
    lines = wrapped(LETTER).split("\n")
    text = "\n\n".join([*map(wrapped, PROSE), "\n".join(lines[:2]), "\n" + "\n".join(lines[2:])])
    assert paragraphs_of(text, "auto") == [*PROSE, LETTER]
    broken = ["IT", PROSE[0][3:], LETTER[:120].strip(), LETTER[120:].strip()]
    assert paragraphs_of("\n\n".join(broken), "auto") == ["IT " + PROSE[0][3:], LETTER]
    assert paragraphs_of("\n\n".join(broken), "kept") == broken


PIECES = ["a", "B", "word ", "Word. ", "\n", "\n\n", "\n\n\n", "  ", "\u3000", "，", "次", "-", "—"]


@given(
    text=st.lists(st.sampled_from([*PIECES, "ab " * 30]), max_size=60).map("".join),
    line_wrap=st.sampled_from(["auto", "joined", "kept"]),
)
def test_no_word_is_lost_whatever_the_layout(text, line_wrap):
    found = paragraphs_of(text, line_wrap)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(part.strip() == part != "" for part in found)


@pytest.mark.corpora
def test_paragraphs_of_real_novels_are_found_again_in_every_layout(corpora):
    names = ("Braddon_Phantom_1883", "Gissing_Women_1893", "Stevenson_Catriona_1893")
    books = [paragraphs_in(corpora / "books" / "en" / f"{name}.txt") for name in names]
    for wrap in WRAPS:
        for separator in SEPARATORS:
            read = found(books, wrap, separator)
            assert read.precision > 0.94, read
            assert read.recall > (0.84 if separator in UNMARKED else 0.96), read
            assert read.mid_sentence < 0.03, read
