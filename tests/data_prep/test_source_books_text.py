"""Books and other files of plain text."""

import codecs

import pytest
from pydantic import ValidationError

from data_prep.sources import Skipped
from data_prep.sources.books import BooksTextConfig, TextFilesConfig
from data_prep.text.books import take_off_frame
from tests.data_prep import reading

STORY = "[Transcriber's note: spelling kept.]\n\nCHAPTER I\n\nThe story.\n\nThe end of it."
NEW = (
    "The Project Gutenberg eBook of A Tale,\nby Ann Walker\n\nTitle: A Tale\n       Of Two Lines\n\n"
    "Author: Ann Walker\n\nLanguage: English\n\n"
)
FRAMES = {
    "2020": (
        NEW + "*** START OF THE PROJECT GUTENBERG EBOOK A TALE,\nOR B ***\n\n\n"
        "Produced by B. C. and the\nonline team\n\n\n",
        "\n\n*** END OF THE PROJECT GUTENBERG EBOOK A TALE ***\n\nLicence\n*** START: FULL LICENSE ***\nmore",
    ),
    "2006": (
        NEW + "***START OF THE PROJECT GUTENBERG EBOOK A TALE***\n\n\nE-text prepared by B. C.\n\n\n\n",
        "\n\nEnd of the Project Gutenberg EBook of A Tale, by Ann Walker\n\n"
        "*** END OF THIS PROJECT GUTENBERG EBOOK A TALE ***\n\nLicence",
    ),
    "1999": (
        "Project Gutenberg Etext of A Tale\n\n***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nLaw\n"
        "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n\n"
        "This etext was prepared by B. C.\n\n\n",
        "\n\n\nEnd of The Project Gutenberg Etext of A Tale, by Ann Walker\n",
    ),
    "1994": (
        "Law\n*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.02.11.94*END*\n\n",
        "\n\n\nEnd of Project Gutenberg's A Tale\n\n***START**THE SMALL PRINT! LAW*START***\nLaw",
    ),
}


def read(tmp_path, data: bytes, **settings) -> reading.Results:
    return reading.read_file(BooksTextConfig, tmp_path / "Eliot_Felix_1866.txt", data, **settings)


def test_a_book_is_named_by_its_file_or_its_frame_which_is_taken_off(tmp_path):
    plain = read(tmp_path, b"Text.").only()
    assert (plain.doc_id, plain.title) == ("s:Eliot_Felix_1866.txt", "Eliot Felix 1866")
    assert plain.meta == {"byte_start": 0, "byte_end": 5, "chapters": 1}
    header, footer = FRAMES["2020"]
    framed = read(tmp_path, (header + STORY + footer).encode()).only()
    assert (framed.title, framed.meta["author"]) == ("A Tale Of Two Lines", "Ann Walker")
    assert framed.text == STORY.replace("\n\nCHAPTER", "\n\n\nCHAPTER")


@pytest.mark.parametrize("style", FRAMES)
def test_project_gutenbergs_frame_of_every_decade_is_taken_off(style):
    header, footer = FRAMES[style]
    assert take_off_frame(header + STORY + footer).text == STORY


@pytest.mark.parametrize(
    "text",
    [
        STORY,
        "Title: no header\n\nProduced by hand.\n\nThe End of the Project was near.",
        "x" * 200_000 + "\n*** START OF THE PROJECT GUTENBERG EBOOK ***\n" + "y" * 200_000,
    ],
    ids=["plain", "words of a frame", "far inside"],
)
def test_text_that_is_no_frame_stays(text):
    assert take_off_frame(text).text == text
    assert take_off_frame(text).title == ""


def test_hostile_frames_take_linear_time():
    for text in ("*** START OF THE PROJECT GUTENBERG " * 30_000, "\n" * 1_000_000, "Produced by\n" * 80_000):
        for frame in ("", "*** START OF THE PROJECT GUTENBERG EBOOK ***\n"):
            assert take_off_frame(frame + text).text.strip() == text.strip()


def test_the_way_of_reading_lines_can_be_fixed(tmp_path):
    assert read(tmp_path, b"one\ntwo\n\nthree", line_wrap="kept").texts == ["one\n\ntwo\n\nthree"]
    assert read(tmp_path, b"one\ntwo\n\nthree", line_wrap="joined").texts == ["one two\n\nthree"]
    lines = "\n".join(
        ["a line that is about as long as all the others are, word for word"] * 8 + ["The end."]
    )
    assert read(tmp_path, f"{lines}\n\n{lines}".encode()).texts == [
        "\n\n".join([lines.replace("\n", " ")] * 2)
    ]


def test_a_named_encoding_is_used_where_there_is_no_byte_order_mark(tmp_path):
    assert read(tmp_path, "naïve".encode("latin-1"), encoding="ISO-8859-1").texts == ["naïve"]
    assert read(tmp_path, codecs.BOM_UTF8 + "naïve".encode(), encoding="latin-1").texts == ["naïve"]
    for unknown in ("utf-9", "rot13", "hex"):
        with pytest.raises(ValidationError, match="encoding"):
            BooksTextConfig(name="s", paths=("*",), encoding=unknown)


@pytest.mark.parametrize(
    ("data", "settings", "offset", "reason"),
    [
        (codecs.BOM_UTF8 + b"good text \xff more", {"encoding": "utf-8"}, 13, "utf-8"),
        (b"x" * 2000, {"max_book_bytes": 1000}, 0, "limit of 1000 bytes"),
        (b"<!DOCTYPE html>\n<html><body><p>Text</p></body></html>", {}, 0, "EPUB"),
    ],
)
def test_a_file_that_is_no_book_is_rejected(tmp_path, data, settings, offset, reason):
    reject = read(tmp_path, data, **settings).rejected()
    assert reject.byte_offset == offset
    assert reason in reject.reason


def test_every_file_of_a_folder_is_a_document_with_its_own_lines(tmp_path):
    assert read(tmp_path, b"\r\n \r\n") == [Skipped("no_text")]
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_bytes("Żółta róża pachnie, a świt jest bliski.\n".encode("cp1250"))
    (tmp_path / "b" / "poem").write_text("Short lines\nstay lines.\n\n\n\nAlways.\n")
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    found = reading.read(TextFilesConfig(name="s", lang="pl", paths=(str(tmp_path),)))
    assert (found.ids, found.reasons, len(found.rejects)) == (["s:a.txt", "s:b/poem"], ["no_text"], 1)
    assert found.texts == ["Żółta róża pachnie, a świt jest bliski.", "Short lines\nstay lines.\n\nAlways."]
