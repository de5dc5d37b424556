"""Repair and normalisation of characters."""

import unicodedata

import pytest
from ftfy import fix_encoding
from ftfy.badness import is_bad
from hypothesis import given
from hypothesis import strategies as st

from tests.data_prep.filters.conftest import Bench

ENCODINGS = ["latin-1", "cp1252", "cp1251", "cp1250", "cp437", "macroman"]
OFF = {"repair": False, "controls": False, "invisible": False, "spaces": False, "normal_form": "none"}
MESSY = "\ufeffsch\xc3\xb6n\r\nCafe\u0301\xa0\x00"


def garbled(character: str, encoding: str) -> str:
    """A character's UTF-8 read in another encoding, where that can be undone."""
    try:
        bad = character.encode().decode(encoding)
        return bad if bad.encode(encoding) == character.encode() else character
    except UnicodeDecodeError:
        return character


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_mojibake_is_undone_in_the_lines_that_have_it(bench, encoding):
    good = "Die Brücke über den Fluß – “très élégant”"
    bad = "".join(garbled(each, encoding) for each in good)
    assert bad != good
    text = f"São Paulo, Århus.\n{bad}\nČeský text, 日本語"
    assert bench("unicode").text(text) == text.replace(bad, good)
    assert bench("unicode").counts(text) == {"repaired": 1}


@pytest.mark.parametrize(
    "text",
    [
        "Das Ä, das Ö und das Ü; naïve façade, Łódź, São Paulo – “quotes”…",
        "Привет, мир. Γειά σου Κόσμε. 日本語の文章。한국어 문장.",
        "€ 5, £ 3, 20 °C, 5 µm, ½, ©, ™, ±, Ångström",
        "नमस्ते दुनिया. می‌خواهم. 👩‍👩‍👧",
    ],
)
def test_clean_text_is_left_alone(bench, text):
    assert bench("unicode").text(text) == text
    assert bench("unicode").counts(text) == {}


@pytest.mark.parametrize(
    ("text", "settings", "normalised"),
    [
        ("a\r\nb\rc\x0bd\x0ce\u2028f\u2029g\x00\x08\x7fh\ti", {}, "a\nb\nc\nd\ne\nf\ngh\ti"),
        # Invisible characters vanish, and joiners stay.
        (
            "\ufeffze\u200bro\u00adwidth\u2060 \u202eno\u202c a\u200db\u200cc",
            {},
            "zerowidth no a\u200db\u200cc",
        ),
        ("a\xa0b\u2009c\u3000d\u202fe", {}, "a b c d e"),
        ("sch\xc3\x00\xb6n", {}, "schön"),  # mojibake around a control character needs a second pass
        ("Cafe\u0301 ﬁn", {}, "Café ﬁn"),
        ("Cafe\u0301 ﬁn", {"normal_form": "NFKC"}, "Café fin"),
        (MESSY, OFF, MESSY),
    ],
)
def test_characters_are_normalised(bench, text, settings, normalised):
    assert bench("unicode", **settings).text(text) == normalised


@given(st.text(st.sampled_from("aé–“”’ł€日Пρ ½®\xa0"), max_size=12), st.sampled_from(ENCODINGS))
def test_every_line_that_the_detector_finds_is_repaired_as_by_ftfy(text, encoding):
    mojibake = text.encode("utf-8").decode(encoding, errors="replace")
    for each in (text, mojibake, mojibake.replace("\xa0", " "), unicodedata.normalize("NFD", mojibake)):
        repaired = each
        while is_bad(repaired) and (fixed := fix_encoding(repaired)) != repaired:
            repaired = fixed
        assert Bench("unicode", **OFF | {"repair": True}).text(each) == repaired
