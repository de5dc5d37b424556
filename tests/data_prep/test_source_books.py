"""Books of plain text: frames of publishers, cleaning, chapters, and real novels."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree
from pydantic import ValidationError

from data_prep.sources.books import BooksTextConfig
from data_prep.sources.books_tei import BooksTeiConfig
from data_prep.text import clean_text
from data_prep.text.books import CHAPTER_BREAK, join_chapters, split_chapters, take_off_frame
from tests.data_prep import reading
from tests.data_prep.test_wrapping import mid_sentence


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
