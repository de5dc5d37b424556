"""Repair and normalisation of characters."""

from __future__ import annotations

import unicodedata

import pytest
from ftfy.badness import is_bad
from hypothesis import given
from hypothesis import strategies as st

from data_prep.filters.unicode import _SUSPECT

ENCODINGS = ["latin-1", "cp1252", "cp1251", "cp1250", "cp437", "macroman"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_mojibake_is_undone_in_the_lines_that_have_it(bench, encoding: str):
    good = "Die Brücke über den Fluß – “très élégant”"
    bad = "".join(
        each.encode("utf-8").decode(encoding) if _survives(each, encoding) else each for each in good
    )
    assert bad != good
    text = f"São Paulo, Århus.\n{bad}\nČeský text, 日本語"
    assert bench("unicode").text(text) == f"São Paulo, Århus.\n{good}\nČeský text, 日本語"
    assert bench("unicode").counts(text) == {"repaired": 1}


def _survives(character: str, encoding: str) -> bool:
    try:
        return character.encode("utf-8").decode(encoding).encode(encoding) == character.encode("utf-8")
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize(
    "text",
    [
        "Das Ä, das Ö und das Ü; naïve façade, Łódź, São Paulo – “quotes”…",
        "Привет, мир. Γειά σου Κόσμε. 日本語の文章。한국어 문장.",
        "€ 5, £ 3, 20 °C, 5 µm, ½, ©, ™, ±, Ångström",
        "नमस्ते दुनिया. می‌خواهم. 👩‍👩‍👧",
    ],
)
def test_clean_text_is_left_alone(bench, text: str):
    outcome = bench("unicode").outcome(text)
    assert outcome.document.text == text
    assert outcome.counts == {}


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("a\r\nb\rc\x0bd\x0ce\u2028f\u2029g\x00\x08\x7fh\ti", "a\nb\nc\nd\ne\nf\ngh\ti"),
        # Invisible characters vanish, and joiners stay.
        (
            "\ufeffze\u200bro\u00adwidth\u2060 \u202eno\u202c a\u200db\u200cc",
            "zerowidth no a\u200db\u200cc",
        ),
        ("a\xa0b\u2009c\u3000d\u202fe", "a b c d e"),
        ("Cafe\u0301 ﬁn", "Café ﬁn"),
        ("sch\xc3\x00\xb6n", "schön"),  # mojibake around a control character needs a second pass
    ],
)
def test_characters_are_normalised(bench, text: str, normalised: str):
    assert bench("unicode").text(text) == normalised


def test_compatibility_forms_are_folded_where_wanted(bench):
    assert bench("unicode", normal_form="NFKC").text("Cafe\u0301 ﬁn") == "Café fin"


def test_everything_can_be_switched_off(bench):
    text = "\ufeffsch\xc3\xb6n\r\nCafe\u0301\xa0\x00"
    off = {"repair": False, "controls": False, "invisible": False, "spaces": False, "normal_form": "none"}
    assert bench("unicode", **off).text(text) == text


@given(st.text(st.sampled_from("aé–“”’ł€日Пρ ½®\xa0"), max_size=12), st.sampled_from(ENCODINGS))
def test_cheap_check_suspects_all_that_the_detector_finds(text: str, encoding: str):
    mojibake = text.encode("utf-8").decode(encoding, errors="replace")
    for each in (text, mojibake, mojibake.replace("\xa0", " "), unicodedata.normalize("NFD", mojibake)):
        assert not is_bad(each) or _SUSPECT.search(each)
