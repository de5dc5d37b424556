"""Chapters: found in plain text, kept in a document's text, and found again."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.sources.books import BooksTextConfig
from data_prep.sources.books_tei import BooksTeiConfig
from data_prep.text.books import CHAPTER_BREAK, join_chapters, split_chapters
from tests.data_prep import reading

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


@given(parts=st.lists(PARAGRAPHS.filter(bool)))
def test_joined_chapters_are_found_again(parts):
    assert [part.split("\n\n") for part in join_chapters(parts).split(CHAPTER_BREAK) if part] == parts


@given(paragraphs=PARAGRAPHS)
def test_splitting_loses_no_paragraph(paragraphs):
    assert [text for part in split_chapters(paragraphs) for text in part] == paragraphs


@pytest.mark.parametrize("heading", HEADINGS.split("|"))
def test_headings_open_chapters(heading):
    assert split_chapters(["Before.", heading, "After."]) == [["Before."], [heading, "After."]]


@pytest.mark.parametrize("text", PROSE.split("|"))
def test_prose_opens_none(text):
    assert split_chapters(["Before.", text, "After."]) == [["Before.", text, "After."]]


@pytest.mark.parametrize(
    ("paragraphs", "starts"),
    [
        (["Title", "BOOK ONE", "CHAPTER I", "a", "CHAPTER II", "b"], [1, 4]),
        (["CHAPTER I", "1", "a", "2", "b", "CHAPTER II", "1", "c", "2", "d"], [5]),
        (["x", "1", "y", "XII", "z"], []),
    ],
    ids=["headings in a row", "numbered sections", "numbers that do not count up"],
)
def test_headings_in_a_row_stay_together_and_numbers_below_names_are_sections(paragraphs, starts):
    bounds = zip([0, *starts], [*starts, None], strict=True)
    assert split_chapters(paragraphs) == [paragraphs[start:end] for start, end in bounds]


@pytest.mark.parametrize(
    "numbers", [["I", "II", "III"], ["I.", "II.", "III."], ["1", "2", "3"], ["I. LOVE", "II.", "III"]]
)
def test_numbers_alone_are_headings_where_they_count_up(numbers):
    first, second, third = numbers
    assert split_chapters([first, "a", second, "b", "I", third, "c"]) in (
        [[first, "a"], [second, "b", "I"], [third, "c"]],
        [[first, "a"], [second, "b", "I", third, "c"]],
    )


NAMED = [
    "Cbronte_Jane_1847",
    "Dickens_Bleak_1853",
    "Kipling_Kim_1901",
    "Gaskell_Ruth_1855",
    "Hardy_Madding_1874",
]
NUMBERED = ["Corelli_Satan_1895", "Hardy_Jude_1895", "Wcollins_Woman_1860"]


@pytest.mark.corpora
@pytest.mark.parametrize("name", [*NAMED, *NUMBERED])
def test_real_novels_have_a_chapter_for_each_line_that_says_so_or_is_a_number_alone(corpora, name):
    path = corpora / "books" / "en" / f"{name}.txt"
    document = reading.read(BooksTextConfig(name="books", paths=(str(path),))).only()
    raw = path.read_text("utf-8-sig")
    if name in NAMED:
        named = re.findall(r"^\s*(?:CHAPTER|Chapter) (?:[IVXLC]+|\d+)\b.{0,60}$", raw, re.MULTILINE)
        assert len(named) <= document.meta["chapters"] <= len(named) + 3
        assert all(len(part) > 1000 for part in document.text.split(CHAPTER_BREAK)[2:])
    else:
        numbers = re.findall(r"^\s*[IVXLC]+\.?\s*$", raw, re.MULTILINE)
        parts = re.findall(
            r"^\s*part \w+\s*$", raw, re.MULTILINE | re.IGNORECASE
        )  # also those of the contents
        assert len(numbers) - 3 <= document.meta["chapters"] <= len(numbers) + len(parts) + 3


@pytest.mark.corpora
@pytest.mark.parametrize("path", ["de/DEU010", "fr/FRA00301_Aimard", "ro/ROM006"])
def test_chapters_found_in_the_plain_text_of_a_tei_book_are_those_of_its_divisions(corpora, path):
    config = BooksTeiConfig(name="eltec", paths=(f"{corpora}/books/{path}.xml",))
    text = reading.read(config).only().text
    paragraphs = text.replace("\n\n\n", "\n\n").split("\n\n")
    true, found = (
        {part.split("\n\n", 1)[0] for part in chapters.split(CHAPTER_BREAK)[1:]}
        for chapters in (text, join_chapters(split_chapters(paragraphs)))
    )
    assert len(true & found) > 0.8 * len(true)
    assert len(found - true) < 0.1 * len(true) + 2
