"""Books and other files of plain text: chapters, the frames of publishers, cleaning."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from data_prep.sources.books import BooksTextConfig, TextFilesConfig
from data_prep.sources.books_tei import BooksTeiConfig
from data_prep.text import clean_text
from data_prep.text.books import CHAPTER_BREAK, join_chapters, split_chapters, take_off_frame
from tests.data_prep import reading


def test_a_book_is_named_by_its_file(tmp_path):
    document = reading.read_file(BooksTextConfig, tmp_path / "Eliot_Felix_1866.txt", b"Text.").only()
    assert (document.doc_id, document.title) == ("s:Eliot_Felix_1866.txt", "Eliot Felix 1866")
    assert document.meta == {"byte_start": 0, "byte_end": 5, "chapters": 1}


@pytest.mark.parametrize("unknown", ["utf-9", "rot13", "hex"])
def test_an_encoding_that_is_unknown_or_of_no_text_is_refused(unknown):
    with pytest.raises(ValidationError, match="encoding"):
        BooksTextConfig(name="s", paths=("*",), encoding=unknown)


@pytest.mark.parametrize(
    "text",
    [
        "Title: no header\n\nProduced by hand.\n\nThe End of the Project was near.",
        "x" * 200_000 + "\n*** START OF THE PROJECT GUTENBERG EBOOK ***\n" + "y" * 200_000,
    ],
    ids=["words of a frame", "far inside"],
)
def test_text_that_is_no_frame_stays(text):
    frame = take_off_frame(text)
    assert (frame.text, frame.title) == (text, "")


def test_hostile_frames_take_linear_time():
    for text in ("*** START OF THE PROJECT GUTENBERG " * 30_000, "\n" * 1_000_000, "Produced by\n" * 80_000):
        for frame in ("", "*** START OF THE PROJECT GUTENBERG EBOOK ***\n"):
            assert take_off_frame(frame + text).text.strip() == text.strip()


def test_every_file_of_a_folder_is_a_document_with_its_own_lines(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_bytes("Żółta róża pachnie, a świt jest bliski.\n".encode("cp1250"))
    (tmp_path / "b" / "poem").write_text("Short lines\nstay lines.\n\n\n\nAlways.\n")
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    found = reading.read(TextFilesConfig(name="s", lang="pl", paths=(str(tmp_path),)))
    assert (found.ids, len(found.rejects)) == (["s:a.txt", "s:b/poem"], 1)
    assert found.texts == ["Żółta róża pachnie, a świt jest bliski.", "Short lines\nstay lines.\n\nAlways."]


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
    assert split_chapters([first, "a", second, "b", third, "c"]) == [
        [first, "a"],
        [second, "b"],
        [third, "c"],
    ]


NAMED = "Cbronte_Jane_1847 Dickens_Bleak_1853 Kipling_Kim_1901 Gaskell_Ruth_1855 Hardy_Madding_1874"
NUMBERED = "Corelli_Satan_1895 Hardy_Jude_1895 Wcollins_Woman_1860"


@pytest.mark.corpora
@pytest.mark.parametrize("name", [*NAMED.split(), *NUMBERED.split()])
def test_real_novels_have_a_chapter_for_each_line_that_says_so_or_is_a_number_alone(corpora, name):
    path = corpora / "books" / "en" / f"{name}.txt"
    document = reading.read(BooksTextConfig(name="books", paths=(str(path),))).only()
    raw, num_chapters = path.read_text("utf-8-sig"), document.meta["chapters"]
    if name in NAMED:
        named = re.findall(r"^\s*(?:CHAPTER|Chapter) (?:[IVXLC]+|\d+)\b.{0,60}$", raw, re.MULTILINE)
        assert len(named) <= num_chapters <= len(named) + 3
        assert all(len(part) > 1000 for part in document.text.split(CHAPTER_BREAK)[2:])
    else:
        numbers = re.findall(r"^\s*[IVXLC]+\.?\s*$", raw, re.MULTILINE)
        parts = re.findall(r"^\s*(?i:part) \w+\s*$", raw, re.MULTILINE)  # also those of the contents
        assert len(numbers) - 3 <= num_chapters <= len(numbers) + len(parts) + 3


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
