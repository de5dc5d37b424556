"""Plain-text books: encodings, wrapped lines, Project Gutenberg's frame."""

import codecs
import textwrap
from typing import Any

import pytest
from pydantic import ValidationError

from cluster.artefacts.shard_records import Reject
from data_prep.document import Document
from data_prep.sources.base import Skipped
from data_prep.sources.books import BooksTextConfig
from tests.data_prep import reading

PARAGRAPHS = [
    "It was a bright cold day in the village — naïve travellers arrived by coach, and " * 3 + "so it began.",
    '"Well?" she said.',
    "Nobody answered. " * 12 + "Then the clock struck.",
]


def wrapped(separator: str) -> str:
    return separator.join("\n".join(textwrap.wrap(text, 70)) for text in PARAGRAPHS)


def read(tmp_path, data: bytes, name: str = "Some_Book.txt", **settings) -> list[Any]:
    (tmp_path / name).write_bytes(data)
    return reading.read(BooksTextConfig(name="books", paths=(f"{tmp_path}/*",), **settings))


def text_of(tmp_path, text: str, **settings) -> str:
    (document,) = read(tmp_path, text.encode(), **settings)
    assert isinstance(document, Document)
    return document.text


@pytest.mark.parametrize("separator", ["\n\n", "\n \n\n", "\n"])
def test_hard_wrapped_paragraphs_are_joined_with_and_without_blank_lines(tmp_path, separator):
    assert text_of(tmp_path, wrapped(separator)).split("\n\n") == PARAGRAPHS


@pytest.mark.parametrize("separator", ["\n\n", "\n"])
def test_one_line_per_paragraph_is_kept(tmp_path, separator):
    text = separator.join(paragraph * 3 for paragraph in PARAGRAPHS)
    assert text_of(tmp_path, text).split("\n\n") == [paragraph * 3 for paragraph in PARAGRAPHS]


def test_the_way_of_reading_lines_can_be_fixed(tmp_path):
    assert text_of(tmp_path, "one\ntwo\n\nthree", line_wrap="kept") == "one\n\ntwo\n\nthree"
    assert text_of(tmp_path, "one\ntwo\n\nthree", line_wrap="joined") == "one two\n\nthree"


def test_words_and_dashes_broken_over_lines_are_joined(tmp_path):
    text = "a well-\nknown man--\nbut no sol\u00ad\ndier; a dash -\nthen\n\nmore"
    assert text_of(tmp_path, text, line_wrap="joined") == (
        "a well-known man--but no soldier; a dash - then\n\nmore"
    )


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode(),
        lambda text: codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode(),
        lambda text: text.encode("utf-16"),
        lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    ],
)
def test_every_encoding_gives_the_same_text(tmp_path, encode):
    (document,) = read(tmp_path, encode(wrapped("\n\n")))
    assert document.text.split("\n\n") == PARAGRAPHS


def test_the_encoding_setting_is_used_where_there_is_no_byte_order_mark(tmp_path):
    (document,) = read(tmp_path, "naïve".encode("latin-1"), encoding="ISO-8859-1")
    assert document.text == "naïve"


@pytest.mark.parametrize("encoding", ["utf-9", "rot13", "hex"])
def test_an_unknown_encoding_is_a_config_error(encoding):
    with pytest.raises(ValidationError, match="unknown encoding"):
        BooksTextConfig(name="books", paths=("*",), encoding=encoding)


def test_bytes_invalid_in_a_named_encoding_reject_the_book_with_their_offset(tmp_path):
    (reject,) = read(tmp_path, codecs.BOM_UTF8 + b"good text \xff more", encoding="utf-8")
    assert isinstance(reject, Reject)
    assert reject.byte_offset == 13
    assert "invalid utf-8" in reject.reason


def test_a_book_over_the_limit_is_rejected(tmp_path):
    (reject,) = read(tmp_path, b"x" * 2000, max_book_bytes=1000)
    assert "limit of 1000 bytes" in reject.reason


def test_an_empty_book_is_skipped_and_counted(tmp_path):
    assert read(tmp_path, b"\r\n \r\n") == [Skipped("no_text")]


def test_title_id_and_bytes_come_from_the_file(tmp_path):
    (document,) = read(tmp_path, b"Text.", "Eliot_Felix_1866.txt")
    assert document.doc_id == "books:Eliot_Felix_1866.txt"
    assert document.title == "Eliot Felix 1866"
    assert document.meta == {"byte_start": 0, "byte_end": 5, "chapters": 1}


def test_project_gutenbergs_frame_is_stripped(tmp_path):
    text = (
        "The Project Gutenberg eBook of X\n\n*** START OF THE PROJECT GUTENBERG EBOOK X,\nOR Y ***\n\n\n"
        "The story.\n\nEnd of Project Gutenberg's X, by Z\n\n*** END OF THE PROJECT GUTENBERG EBOOK ***\nLaw"
    )
    assert text_of(tmp_path, text) == "The story."


def test_control_characters_are_removed_and_page_breaks_separate_lines(tmp_path):
    text = "a long enough line\x00b\x7f\tc\x0c\x0cd\ufeff"
    assert text_of(tmp_path, text, line_wrap="kept") == "a long enough lineb\tc\n\nd"


OLD_ENCODINGS = {
    "pl": ("Zażółć gęślą jaźń. Litwo! Ojczyzno moja! ty jesteś jak zdrowie; ", ["iso8859-2", "cp1250"]),
    "ru": (
        "Все счастливые семьи похожи друг на друга, каждая несчастлива по-своему. ",
        ["koi8-r", "cp866", "cp1251"],
    ),
    "ja": ("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。", ["euc_jp", "cp932"]),
    "zh": ("吾十有五而志於學，三十而立，四十而不惑，五十而知天命。", ["big5", "gb18030"]),
}


@pytest.mark.parametrize(
    ("lang", "encoding"), [(lang, name) for lang, (_, names) in OLD_ENCODINGS.items() for name in names]
)
def test_encodings_from_before_windows_are_told_by_the_text(tmp_path, lang, encoding):
    text = OLD_ENCODINGS[lang][0] * 8
    (document,) = read(tmp_path, text.encode(encoding), lang=lang)
    assert document.text == text.strip()


@pytest.mark.parametrize("prose", ["", "\n\n".join(PARAGRAPHS)], ids=["verse", "verse in prose"])
def test_verse_keeps_its_lines_and_prose_does_not(tmp_path, prose):
    stanzas = [
        "So we'll go no more a roving\nSo late into the night,\nThough the heart be still as loving,\n"
        "And the moon be still as bright.",
        "For the sword outwears its sheath,\nAnd the soul wears out the breast,\nAnd the heart must pause to"
        " breathe,\nAnd love itself have rest.",
    ]
    wrapped_prose = wrapped("\n\n") if prose else ""
    text = "\n\n".join([wrapped_prose, *stanzas, wrapped_prose]).strip("\n")
    expected = "\n\n".join([prose, *stanzas, prose]).strip("\n")
    assert text_of(tmp_path, text) == expected
    assert stanzas[0].replace("\n", " ") in text_of(tmp_path, text, line_wrap="joined")


def test_chinese_and_japanese_lines_join_without_a_space_and_indents_begin_paragraphs(tmp_path):
    text = "\u3000次日，三人同行，路遇一人，乃徐州刺史陶\n谦之使也。\n\u3000飞曰：然。\n\n" * 8
    assert text_of(tmp_path, text, lang="zh").split("\n\n")[:2] == [
        "次日，三人同行，路遇一人，乃徐州刺史陶谦之使也。",
        "飞曰：然。",
    ]


def test_a_web_page_is_no_book(tmp_path):
    (reject,) = read(tmp_path, b"<!DOCTYPE html>\n<html><body><p>Text</p></body></html>")
    assert isinstance(reject, Reject)
    assert "an HTML page" in reject.reason
