"""Hard-wrapped text to paragraphs: any layout of lines, letters, epigraphs, verse, lists, and pages."""

import random
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, cycle, repeat

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
CONTENTS = "I. The Period\nII. The Mail\nIII. The Night Shadows\nIV. The Preparation"
Widths = Callable[[], Iterator[int]]
"""Widths of the lines of a layout, one after the other."""
WRAPS: dict[str, Widths] = {
    "40 wide": lambda: repeat(40),
    "72 wide": lambda: repeat(72),
    "130 wide": lambda: repeat(130),
    "72 and 48 wide by turns": lambda: cycle((72, 48)),
    "72 wide, then 50": lambda: repeat(72),
    "65 wide, then 60": lambda: repeat(65),
    "58 to 75 wide": lambda: map(random.Random(1).randint, repeat(58), repeat(75)),
}
WRAPPED_AGAIN = {"72 wide, then 50": 50, "65 wide, then 60": 60}
SEPARATORS: dict[str, Callable[[Sequence[Sequence[str]]], str]] = {
    "blank lines": lambda book: "\n\n".join("\n".join(lines) for lines in book),
    "nothing between": lambda book: "\n".join("\n".join(lines) for lines in book),
    "indents": lambda book: "\n".join("   " + "\n".join(lines) for lines in book),
    "blank lines between all lines": lambda book: "\n\n".join("\n\n".join(lines) for lines in book),
    "one blank line and two": lambda book: "\n\n\n".join("\n\n".join(lines) for lines in book),
    "all indented, trailing blanks, CRLF": lambda book: "\r\n\r\n".join(
        "\r\n".join(f"    {line}  " for line in lines) for lines in book
    ),
    # A blank line after every fortieth, too.
    "pages": lambda book: "\n".join(
        line + "\n" * (number % 40 == 39)
        for number, line in enumerate(line for lines in book for line in (*lines, ""))
    ),
}


def laid_out(paragraphs: Sequence[str], wrap: str, separator: str) -> str:
    """Paragraphs in lines, each as wide as the next width allows."""
    widths, book = WRAPS[wrap](), []
    for paragraph in paragraphs:
        lines, width = [""], next(widths)
        for word in paragraph.split():
            if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
                lines.append("")
                width = next(widths)
            lines[-1] = f"{lines[-1]} {word}".lstrip()
        again = WRAPPED_AGAIN.get(wrap, 1000)
        book.append([piece for line in lines for piece in textwrap.wrap(line, again, break_long_words=False)])
    return SEPARATORS[separator](book)


def found(paragraphs: Sequence[str], page: str, line_wrap: LineWrap) -> tuple[float, float, float]:
    """What became of the paragraphs of a book, laid out as a page and read again.

    Of the paragraphs found, the share that ends where one does; of those there are, the share whose end was found; of
    the lines and paragraphs found, the share that begins with a small letter.
    """
    lines = [line for paragraph in paragraphs_of(page, line_wrap) for line in paragraph.split("\n")]
    # Ends of paragraphs, counted in characters that no layout changes.
    ends, there = (
        set(accumulate(len(re.sub(r"[\s\u00ad-]", "", each)) for each in texts))
        for texts in (lines, paragraphs)
    )
    return len(ends & there) / len(ends), len(ends & there) / len(there), mid_sentence(lines)


def mid_sentence(paragraphs: Sequence[str]) -> float:
    """The share that begins with a small letter."""
    quotes = " \"'_*“”‘’«»„(—–-[]"
    return sum(text.lstrip(quotes)[:1].islower() for text in paragraphs) / len(paragraphs)


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
@pytest.mark.parametrize("wrap", [*WRAPS])
def test_paragraphs_are_found_again_in_lines_of_any_widths_however_they_are_separated(
    wrap, separator, line_wrap
):
    extra = [f"{part} Then {number} more." for number, part in enumerate(PROSE)]
    book = [*PROSE, LETTER, *PROSE[::-1], *extra] * 6
    page = decode_text(laid_out(book, wrap, separator).encode(), "auto", "en")
    precision, recall, torn = found(book, page, line_wrap)
    assert precision > 0.93
    assert recall > 0.75
    assert torn < 0.02


@pytest.mark.parametrize(
    ("text", "line_wrap", "expected"),
    [
        ("\n\n".join(part * 3 for part in PROSE), "auto", [part * 3 for part in PROSE]),
        ("\n".join(part * 3 for part in PROSE), "auto", [part * 3 for part in PROSE]),
        (
            "\u3000次日，三人同行，路遇一人，乃徐州刺史陶\n谦之使也。\n\u3000飞曰：然。\n\n" * 8,
            "auto",
            ["次日，三人同行，路遇一人，乃徐州刺史陶谦之使也。", "飞曰：然。"] * 8,
        ),
    ],
    ids=["wide", "wide, unspaced", "Chinese"],
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
