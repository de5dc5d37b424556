"""Hard-wrapped text to paragraphs: any layout of lines, letters, epigraphs, verse, lists, and pages."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text.wrapping import paragraphs_of
from tests.benchmarks import line_wrapping

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
@pytest.mark.parametrize("separator", [*line_wrapping.SEPARATORS])
@pytest.mark.parametrize("wrap", ["72 and 48 wide by turns", "72 wide, then 50", "130 wide"])
def test_lines_of_two_widths_and_blank_lines_between_all_lines_are_joined(wrap, separator, line_wrap):
    book = [
        *PROSE,
        LETTER,
        *PROSE[::-1],
        *[f"{part} Then {number} more." for number, part in enumerate(PROSE)],
    ] * 6
    found = line_wrapping.found([book], wrap, separator, line_wrap)
    assert found.precision > 0.93
    assert found.recall > 0.75
    assert found.mid_sentence < 0.02


def test_a_sentence_goes_on_behind_the_blank_lines_of_a_page_break():
    lines = wrapped(LETTER).split("\n")
    text = "\n\n".join(map(wrapped, PROSE)) + "\n\n" + "\n".join(lines[:2]) + "\n\n\n" + "\n".join(lines[2:])
    assert paragraphs_of(text, "auto") == [*PROSE, LETTER]
    long = [*PROSE[:4], LETTER[:40], LETTER[40:].strip()]
    assert paragraphs_of(
        "\n\n".join(["IT", PROSE[0][3:], LETTER[:120].strip(), LETTER[120:].strip()]), "auto"
    ) == [
        "IT " + PROSE[0][3:],
        LETTER,
    ]
    assert paragraphs_of("\n\n".join(long), "kept") == long


@pytest.mark.parametrize(
    "text",
    [
        "abandon\nability\nable\nabout\nabove\nabsence\nabsolutely\nacademic\naccept\naccess\naccident\naccount",
        "\n".join(f"word: {'it is ' * (number % 11)}what one says" for number in range(100)),
        "\n".join(f"Mr. Brown said that it was {number}, and left." for number in range(30)),
    ],
)
def test_lists_are_no_wrapped_prose(text):
    assert paragraphs_of(text, "auto") == text.split("\n")


@given(
    text=st.lists(
        st.sampled_from(
            [
                "a",
                "B",
                "word ",
                "Word. ",
                "\n",
                "\n\n",
                "\n\n\n",
                "  ",
                "\u3000",
                "，",
                "次",
                "-",
                "—",
                "ab " * 30,
            ]
        ),
        max_size=60,
    ).map("".join),
    line_wrap=st.sampled_from(["auto", "joined", "kept"]),
)
def test_no_word_is_lost_whatever_the_layout(text, line_wrap):
    found = paragraphs_of(text, line_wrap)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(part.strip() == part != "" for part in found)


@pytest.mark.corpora
def test_paragraphs_of_real_novels_are_found_again_in_every_layout(corpora):
    names = ("Braddon_Phantom_1883", "Gissing_Women_1893", "Stevenson_Catriona_1893")
    books = [line_wrapping.paragraphs_in(corpora / "books" / "en" / f"{name}.txt") for name in names]
    for wrap in line_wrapping.WRAPS:
        for separator in line_wrapping.SEPARATORS:
            found = line_wrapping.found(books, wrap, separator)
            assert found.precision > 0.94, found
            assert found.recall > (0.84 if separator in UNMARKED else 0.96), found
            assert found.mid_sentence < 0.03, found


UNMARKED = ("nothing between", "blank lines between all lines")
"""Layouts in which a paragraph whose last line is full cannot be told from one that goes on."""


def test_lines_of_scripts_without_spaces_join_without_a_space():
    assert paragraphs_of("ภาษาไทยไม่มี\nช่องว่าง\nဤစာကြောင်း\nများ", "joined") == ["ภาษาไทยไม่มีช่องว่างဤစာကြောင်းများ"]
