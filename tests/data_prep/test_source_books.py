"""Books of plain text: frames, cleaning, chapters, real novels, and paragraphs of hard-wrapped lines."""

import random
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, cycle, repeat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree
from pydantic import ValidationError

from data_prep.sources.books import BooksTextConfig
from data_prep.sources.books_tei import BooksTeiConfig
from data_prep.text import clean_text
from data_prep.text.books import CHAPTER_BREAK, join_chapters, split_chapters, take_off_frame
from data_prep.text.encodings import decode_text
from data_prep.text.wrapping import LineWrap, paragraphs_of
from tests.data_prep import reading


@pytest.mark.parametrize("unknown", ["utf-9", "rot13", "hex"])
def test_an_encoding_that_is_unknown_or_of_no_text_is_refused(unknown):
    with pytest.raises(ValidationError, match="encoding"):
        BooksTextConfig(name="s", paths=("*",), encoding=unknown)


def test_hostile_frames_take_linear_time_and_a_frame_far_inside_is_none():
    frame = "*** START OF THE PROJECT GUTENBERG EBOOK ***\n"
    inside = "x" * 200_000 + f"\n{frame}" + "y" * 200_000
    hostile = ("*** START OF THE PROJECT GUTENBERG " * 30_000, "\n" * 1_000_000, "Produced by\n" * 80_000)
    for before, text in [("", inside), *((before, text) for before in ("", frame) for text in hostile)]:
        assert take_off_frame(before + text).text.strip() == text.strip()


# -- cleaning ---------------------------------------------------------------------------------------------------

MESSY = st.text(
    st.sampled_from("ab \n\r\t\x00\x0b\x0c\x1c\x85\u00a0\u00ad\u2028\u3000\ud800\ufeffé"), max_size=30
)


def rules_spelled_out(text: str, most_newlines: int) -> str:
    text = re.sub("\r\n|[\r\x0b\x0c\x85\u2028\u2029]", "\n", text)
    text = "".join(
        c for c in text if c in "\t\n" or not re.match("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufeff]", c)
    )
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(f"\n{{{most_newlines},}}", "\n" * most_newlines, text).strip("\n")


@pytest.mark.parametrize("keep_chapters", [False, True])
@given(text=st.text() | MESSY)
@example(text="One.\n\nStill one.\n\n\nTwo.\n\n\n\n\nThree.")
@example(text="a  \r\n\r\n\r\n\tb\x00\u2028c" + " " * 1_000_000 + "d\ud800")
def test_text_is_cleaned_as_the_rules_say(keep_chapters, text):
    expected = rules_spelled_out(text, 3 if keep_chapters else 2)
    assert clean_text(text, keep_chapters=keep_chapters) == expected
    assert clean_text(expected, keep_chapters=keep_chapters) == expected


# -- chapters ---------------------------------------------------------------------------------------------------

PARAGRAPHS = st.lists(
    st.text("abc \n", min_size=1).map(str.strip).filter(lambda text: text and "\n\n" not in text)
)
HEADINGS = (
    "CHAPTER IV|CHAPTER IV.|Chapter 1.|Chapter the Last|CHAPTER XXI. OF THE GREAT FOLK-MOTE|[CHAPTER 5]"
    "|CHAPTER II--_The Man in Green_|CHAPTER TWENTY-ONE|BOOK THE FIRST|Book Two: The Road|PART FIRST|VOL. II."
    "|Letter No. 3|PROLOGUE|Preface.|Kapitel 3|Erstes Kapitel|3. Kapitel|Zweiter Theil|Chapitre II"
    "|CHAPITRE PREMIER|Première partie|CAPITOLUL I. Robul|Capítulo 12"
)
PROSE = (
    "Chapter and verse.|Chapter four shows that this is so.|Chapter I was the best of them.|Part of the way we walked."
    "|Book the room, please.|I.|V.|1867|Letter by letter he read it.|“Book Two?” he asked."
    f"|CHAPTER IV {'and so on ' * 20}|Introduction to the family was made.|Mix"
)
STARTS = [
    *((["Before.", heading, "After."], [1]) for heading in HEADINGS.split("|")),
    *((["Before.", text, "After."], []) for text in PROSE.split("|")),
    (["Title", "BOOK ONE", "CHAPTER I", "a", "CHAPTER II", "b"], [1, 4]),
    (["CHAPTER I", "1", "a", "2", "b", "CHAPTER II", "1", "c", "2", "d"], [5]),
    (["x", "1", "y", "XII", "z"], []),
    *(
        ([first, "a", second, "b", third, "c"], [2, 4])
        for first, second, third in (
            ("I", "II", "III"),
            ("I.", "II.", "III."),
            "123",
            ("I. LOVE", "II.", "III"),
        )
    ),
]
"""Paragraphs, and which of them open chapters after the first."""


@given(parts=st.lists(PARAGRAPHS.filter(bool)))
def test_joined_chapters_are_found_again(parts):
    assert [part.split("\n\n") for part in join_chapters(parts).split(CHAPTER_BREAK) if part] == parts


@given(paragraphs=PARAGRAPHS)
def test_splitting_loses_no_paragraph(paragraphs):
    assert [text for part in split_chapters(paragraphs) for text in part] == paragraphs


@pytest.mark.parametrize(("paragraphs", "starts"), STARTS, ids=["|".join(texts)[:60] for texts, _ in STARTS])
def test_headings_and_numbers_that_count_up_open_chapters_and_prose_opens_none(paragraphs, starts):
    bounds = zip([0, *starts], [*starts, None], strict=True)
    assert split_chapters(paragraphs) == [paragraphs[start:end] for start, end in bounds]


# -- real novels ------------------------------------------------------------------------------------------------


def paragraphs_in(text: str) -> list[str]:
    return text.replace("\n\n\n", "\n\n").split("\n\n")


@pytest.mark.corpora
def test_eighty_novels_are_paragraphs_that_hardly_ever_begin_in_mid_sentence(corpora):
    texts = reading.read(BooksTextConfig(name="s", paths=(f"{corpora}/books/en/*.txt",))).texts
    paragraphs = [own for text in texts for own in paragraphs_in(text)]
    assert len(texts) == 80
    assert mid_sentence(paragraphs) < 0.003
    assert sum(150 < len(text) / len(paragraphs_in(text)) < 1200 for text in texts) >= 78
    verse = sum(len(own) for own in paragraphs if "\n" in own)
    assert verse < 0.005 * sum(map(len, texts))


@pytest.mark.corpora
@pytest.mark.parametrize("lang", ["de", "fr", "ro"])
def test_novels_in_tei_have_the_words_of_their_paragraphs_and_a_chapter_for_each_division(corpora, lang):
    files = BooksTeiConfig(name="eltec", paths=(f"{corpora}/books/{lang}/*.xml",)).list_files()
    assert len(files) == 12
    for file in files[:4]:
        document = reading.read(BooksTeiConfig(name="eltec", paths=(file.path,))).only()
        assert document.lang == lang
        assert "ELTeC" not in document.title
        assert len(document.meta["author"]) > 4
        body = etree.parse(file.path).find("{*}text/{*}body")
        words = "".join("".join(each.itertext()) for each in body.iter("{*}p", "{*}l", "{*}head")).split()
        assert 0.95 * len(words) < len(document.text.split()) < 1.1 * len(words)
        divisions = [each for each in body.iter("{*}div") if each.get("type") in ("chapter", "letter")]
        typed = [each for each in divisions if any(line.text for line in each.iter("{*}p", "{*}l"))]
        assert len(document.text.split(CHAPTER_BREAK)) == document.meta["chapters"]
        assert len(typed) <= document.meta["chapters"] <= len(typed) + 6


@pytest.mark.corpora
@pytest.mark.parametrize("path", ["de/DEU010", "fr/FRA00301_Aimard", "ro/ROM006"])
def test_chapters_found_in_the_plain_text_of_a_tei_book_are_those_of_its_divisions(corpora, path):
    text = reading.read(BooksTeiConfig(name="eltec", paths=(f"{corpora}/books/{path}.xml",))).only().text
    true, found = (
        {part.split("\n\n", 1)[0] for part in chapters.split(CHAPTER_BREAK)[1:]}
        for chapters in (text, join_chapters(split_chapters(paragraphs_in(text))))
    )
    assert len(true & found) > 0.8 * len(true)
    assert len(found - true) < 0.1 * len(true) + 2


PASSAGES = [
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
    prose = separator.join(map(wrapped, PASSAGES))
    for width, indent in ((44, 6), (38, 0), (60, 4)):
        inserted = wrapped(LETTER, width, indent)
        text = "\n\n".join([CONTENTS, "CHAPTER I.", prose, inserted, prose, VERSE, prose])
        found = paragraphs_of(text, "auto")
        assert found.count(LETTER) == 1
        if separator == "\n\n":
            assert found == [CONTENTS, "CHAPTER I.", *PASSAGES, LETTER, *PASSAGES, VERSE, *PASSAGES]
        else:
            lines = [*CONTENTS.split("\n"), "CHAPTER I.", *VERSE.split("\n")]
            assert [line for line in lines if not any(line in part.split("\n") for part in found)] == []
            assert [part for part in PASSAGES if part not in found] == []
        joined = paragraphs_of(text, "joined")
        assert LETTER in joined
        assert all("\n" not in part for part in joined)


@pytest.mark.parametrize("line_wrap", ["auto", "joined"])
@pytest.mark.parametrize("separator", [*SEPARATORS])
@pytest.mark.parametrize("wrap", [*WRAPS])
def test_paragraphs_are_found_again_in_lines_of_any_widths_however_they_are_separated(
    wrap, separator, line_wrap
):
    extra = [f"{part} Then {number} more." for number, part in enumerate(PASSAGES)]
    book = [*PASSAGES, LETTER, *PASSAGES[::-1], *extra] * 6
    page = decode_text(laid_out(book, wrap, separator).encode(), "auto", "en")
    precision, recall, torn = found(book, page, line_wrap)
    assert precision > 0.93
    assert recall > 0.75
    assert torn < 0.02


@pytest.mark.parametrize(
    ("text", "line_wrap", "expected"),
    [
        ("\n\n".join(part * 3 for part in PASSAGES), "auto", [part * 3 for part in PASSAGES]),
        ("\n".join(part * 3 for part in PASSAGES), "auto", [part * 3 for part in PASSAGES]),
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
    text = "\n\n".join([*map(wrapped, PASSAGES), "\n".join(lines[:2]), "\n" + "\n".join(lines[2:])])
    assert paragraphs_of(text, "auto") == [*PASSAGES, LETTER]
    broken = ["IT", PASSAGES[0][3:], LETTER[:120].strip(), LETTER[120:].strip()]
    assert paragraphs_of("\n\n".join(broken), "auto") == ["IT " + PASSAGES[0][3:], LETTER]
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
