"""Bytes to text: code pages, mixtures, UTF-16 without a mark, mojibake, and what is no text."""

import codecs
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text import UnreadableError, clean_text
from data_prep.text.encodings import decode_text, repair_mojibake

ENGLISH = "“It’s naïve,” said Zoë – the café was closed.\n" * 3
RUSSIAN = "Привет, мир. Это старая книга."
DECLARATION: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "encodings.yaml").read_text("utf-8"))
UNKNOWN = DECLARATION.pop("unknown")


def auto(data: bytes, lang: str = "en") -> str:
    return decode_text(data, "auto", lang)


@given(text=st.text(st.characters(exclude_categories=("Cc", "Cs"))))
def test_utf8_is_never_taken_for_anything_else(text):
    assert auto(text.encode()) == clean_text(repair_mojibake(text.removeprefix("\ufeff")))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
def test_unicode_is_told_with_and_without_byte_order_mark(encoding):
    for lang, text in (
        ("en", ENGLISH),
        ("ru", RUSSIAN),
        *((k, DECLARATION[k]["text"]) for k in ("pl", "el", "ja")),
    ):
        text += "\nA line in ASCII.\n"
        assert auto(text.encode(encoding), lang) == text.strip()


def test_a_mixture_of_encodings_is_read_line_by_line_and_within_a_line():
    lines = [line.encode(["utf-8", "cp1252"][number % 2]) for number, line in enumerate(ENGLISH.split("\n"))]
    assert auto(b"\n".join(lines)) == ENGLISH.strip()
    assert auto("café ".encode() + "naïve".encode("cp1252")) == "café naïve"
    assert auto(codecs.BOM_UTF8 + "café ".encode() + b"na\xefve") == "café naïve"


def test_a_damaged_byte_does_not_change_the_rest_of_a_book_in_any_script():
    data = (RUSSIAN * 10).encode()
    at = len("Привет".encode())
    assert auto(data[:at] + b"\xff" + data[at:]).replace("ÿ", "") == RUSSIAN * 10


def test_mojibake_is_repaired_in_its_lines_only_and_real_letters_are_none():
    good = "Â was a letter, LIBERTÉ» and „Spaß»"
    bad = "Itâ€™s naÃ¯ve â€œquotedâ€\x9d"
    assert auto(f"{good}\n{bad}\n{good}".encode()) == f"{good}\nIt’s naïve “quoted”\n{good}"
    real = [own["text"] for own in DECLARATION.values()]
    for text in ("TÂCHE, ÂGE; Ñandú, São Paulo — Ðe Ïle", ENGLISH, RUSSIAN, *real):
        assert repair_mojibake(text) == text


def test_a_named_encoding_is_strict_and_repairs_nothing():
    assert decode_text("Itâ€™s".encode(), "utf-8", "en") == "Itâ€™s"
    with pytest.raises(UnreadableError) as caught:
        decode_text(b"good \xff", "utf-8", "en")
    assert caught.value.offset == 5


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 1000,
        b"\x01\x02\x03" * 10,
        random.Random(1).randbytes(5000),
        RUSSIAN.encode("cp1251") * 20,
        b"\xff\xfe" + b"\0\xd8" * 20,
        "even".encode("utf-16-le") * 3 + b"x",
    ],
    ids=["zeros", "control", "random", "foreign code page", "lone surrogates", "half a character"],
)
def test_what_is_no_text_of_the_language_is_refused(data):
    with pytest.raises(UnreadableError):
        auto(data)


def cp1258_letters(text: str) -> str:
    """Vietnamese as Windows-1258 has it: tones are characters of their own."""
    tones = "\u0300\u0301\u0303\u0309\u0323"
    parts = [unicodedata.normalize("NFD", character) for character in text]
    return "".join(
        unicodedata.normalize("NFC", "".join(mark for mark in part if mark not in tones))
        + "".join(mark for mark in part if mark in tones)
        for part in parts
    )


@pytest.mark.parametrize("lang", DECLARATION)
def test_every_encoding_of_a_language_is_read_right_and_without_the_language_right_or_not_at_all(lang):
    refused = []
    for encoding in DECLARATION[lang]["encodings"].split():
        text = DECLARATION[lang]["text"]
        text = cp1258_letters(text) if encoding == "cp1258" else text
        text = text.encode(encoding, "ignore").decode(encoding)
        for lines in (1, 20):
            data = "\n".join([text] * lines).encode(encoding)
            expected = data.decode(encoding)
            try:
                assert auto(data, lang[:2]) == expected, encoding
            except UnreadableError:
                assert lines == 1, encoding  # too little to be told UTF-16 or a rare encoding
            try:
                assert auto(data, "en") == expected, encoding
            except UnreadableError as error:
                refused.append(error.reason)
    assert all("name it in `encoding`" in reason for reason in refused)


@pytest.mark.parametrize("unknown", UNKNOWN, ids=[each["name"] for each in UNKNOWN])
def test_encodings_that_python_does_not_know_are_refused_by_name(unknown):
    letters = str.maketrans(unknown["plain"], unknown["encoded"])
    data = DECLARATION["vi"]["text"].lower().translate(letters).encode("latin-1", "replace")
    for lang in ("vi", "en", "fr"):
        with pytest.raises(UnreadableError, match="TCVN-5712, VISCII" if lang == "vi" else "`encoding`"):
            auto(data, lang)


def test_one_wrong_letter_does_not_refuse_a_book_and_many_do():
    book = ("It rained in London, and nobody minded. " * 400).encode()
    assert auto(book + b"tre Fran\xc1ais").endswith("FranÁais")
    with pytest.raises(UnreadableError, match="cp1250"):
        auto((DECLARATION["pl"]["text"] + " ").encode("cp1250") * 3 + book)
